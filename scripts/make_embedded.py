"""Make the embedded data set: a fixed subset of Fashion-MNIST, as one .npz file.

The first 600 training images and the first 200 test images of every class are
taken, in the order of the original files. The entries are compressed with LZMA
(an ordinary .npz for ``numpy.load``, a seventh smaller than Deflate) and carry
a fixed date, so that the same data gives the same file.

    python scripts/make_embedded.py FOLDER_WITH_THE_FOUR_IDX_FILES
"""

from __future__ import annotations

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

from carvyfl.core.archives import contents
from carvyfl.data.datasets import (
    DATASETS,
    EMBEDDED_FILE,
    IDX_FILES,
    checked,
    find_file,
    parse_idx,
)

PER_CLASS = {"train": 600, "test": 200}
TARGET = Path(__file__).parents[1] / "src/carvyfl/data/embedded" / EMBEDDED_FILE


def main() -> None:
    """Read the source folder, write the package's file and print its sum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="folder with Fashion-MNIST's four IDX files")
    source = parser.parse_args().source
    arrays = {}
    for array, file in IDX_FILES.items():
        path = find_file(source, file)
        if path is None:
            parser.error(f"{source}: {file} [.gz] missing")
        content = checked(contents(path), DATASETS["fashion-mnist"], file, str(path))
        arrays[array] = parse_idx(content, str(path))
    with zipfile.ZipFile(TARGET, "w") as archive:
        for part, count in PER_CLASS.items():
            labels = arrays[f"y_{part}"]
            classes = range(10)
            chosen = np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in classes]))
            for kind in ("x", "y"):
                stream = io.BytesIO()
                np.save(stream, arrays[f"{kind}_{part}"][chosen], allow_pickle=False)
                entry = zipfile.ZipInfo(f"{kind}_{part}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                archive.writestr(entry, stream.getvalue(), zipfile.ZIP_LZMA)
    made = TARGET.read_bytes()
    print(f"{TARGET}: {len(made)} bytes, SHA-256 {hashlib.sha256(made).hexdigest()}")


if __name__ == "__main__":
    main()
