"""Ed25519 signatures of a run's record, so that a certificate can be handed over.

Keys are ordinary PEM files and the signature is the plain 64 bytes over ``run.json``, so that
other tools can make and check them too. Needs the extra ``sign``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def sign_file(file: Path, signature: Path, key: Path) -> None:
    """Sign a file's bytes with a private key (PEM without a password)."""
    made = _key(key, private=True).sign(_read(file))
    with replacing(signature) as out:
        out.write(made)


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public Ed25519 key (PEM)."""
    key: Ed25519PublicKey = _key(path, private=False)
    return key


def is_signed(file: Path, signature: Path, public: Ed25519PublicKey) -> bool:
    """Whether a signature is that of this file's bytes under a public key."""
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(_read(signature), _read(file))
    except InvalidSignature:
        return False
    return True


def _key(path: Path, *, private: bool) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise CarvyError(
            "signatures need the package cryptography; install carvyfl with its extra 'sign'"
        ) from error
    content = _read(path)
    try:
        if private:
            key: object = serialization.load_pem_private_key(content, None)
        else:
            key = serialization.load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        kind = "private key as PEM without a password" if private else "public key as PEM"
        raise CarvyError(f"{path}: no {kind}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey):
        raise CarvyError(
            f"{path}: no Ed25519 key; make one with: openssl genpkey -algorithm ed25519"
        )
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CarvyError(f"cannot read {path}: {error.strerror}") from error
