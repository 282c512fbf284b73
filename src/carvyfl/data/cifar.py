"""Reading the binary edition of CIFAR-10, which needs nothing unpickled."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError

SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
"""Bytes of an image: its label, then its red, green and blue plane, each row by row."""

TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"

SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""Of the files in the publisher's archive, recognised by the SHA-1 sums that MXNet lists."""

_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
CONSTANTS = (0.4734, 0.2516, tuple(_CLASSES.split()))
"""Mean and standard deviation of all channels of the 50,000 training images, scaled to 0…1
(0.47336 and 0.25157), and the names of the classes."""


def read_batches(files: Mapping[str, bytes]) -> dict[str, npt.NDArray[np.uint8]]:
    """Turn the six files into ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    Images are uint8 of shape (n, 3, 32, 32), labels uint8 of shape (n,).
    """
    train = np.concatenate([parse_batch(files[file], file) for file in TRAIN_FILES])
    arrays = {}
    for part, records in (("train", train), ("test", parse_batch(files[TEST_FILE], TEST_FILE))):
        arrays[f"x_{part}"] = records[:, 1:].reshape(-1, *SHAPE)
        arrays[f"y_{part}"] = records[:, 0]
    return arrays


def parse_batch(content: bytes, where: str) -> npt.NDArray[np.uint8]:
    """Turn the bytes of one file into records, uint8 of shape (n, :data:`RECORD`)."""
    if not content or len(content) % RECORD:
        raise CarvyError(
            f"{where}: {len(content)} bytes are not whole records of {RECORD}; get a fresh copy"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, RECORD)
