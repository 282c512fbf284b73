"""Ed25519 signatures of a run's record, so that a certificate can be handed over.

Keys are ordinary PEM files and the signature is the plain 64 bytes over ``run.json``, so that
other tools can make and check them too. Needs the extra ``sign``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_MISSING = "signatures need the package cryptography; install carvyfl with its extra 'sign'"


def sign_file(file: Path, signature: Path, key: Path) -> None:
    """Sign a file's bytes.

    Parameters
    ----------
    file, signature
        What to sign; where the 64 bytes of the signature go.
    key
        A private Ed25519 key as PEM, without a password.
    """
    made = _private(key).sign(_read(file))
    with replacing(signature) as out:
        out.write(made)


def is_signed(file: Path, signature: Path, public: Ed25519PublicKey) -> bool:
    """Whether a signature is that of this file's bytes under a public key."""
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(_read(signature), _read(file))
    except InvalidSignature:
        return False
    return True


def _private(path: Path) -> Ed25519PrivateKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise CarvyError(_MISSING) from error
    try:
        key = load_pem_private_key(_read(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CarvyError(f"{path}: no private key as PEM without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise CarvyError(
            f"{path}: no Ed25519 key; make one with: openssl genpkey -algorithm ed25519"
        )
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public Ed25519 key (PEM)."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise CarvyError(_MISSING) from error
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CarvyError(f"{path}: no public key as PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise CarvyError(f"{path}: no Ed25519 key")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CarvyError(f"cannot read {path}: {error.strerror}") from error
