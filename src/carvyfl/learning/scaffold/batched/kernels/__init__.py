"""Layers with different weights for every client, on a GPU.

PyTorch has no fast version of them: cuDNN is several times slower with per-client weights. A
program of these Triton kernels works for one client, and sums are taken in a fixed order, so no
client's numbers depend on its neighbours. Sizes of a layer, the number of clients excepted, are
compile-time constants. Where the ReLU between two layers goes is said in
:mod:`carvyfl.learning.scaffold.batched.net`.
"""

import importlib
import os
import pkgutil

# Triton's default changes with version 3.10, and numbers with it. Read when a kernel is compiled.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def import_all() -> None:
    """Import every kernel on the calling thread, so that threads which launch them import none."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
