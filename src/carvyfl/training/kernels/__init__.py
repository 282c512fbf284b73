"""Layers with different weights for every client, on a GPU.

PyTorch has no fast version of them: cuDNN runs a convolution with per-client weights
as a grouped one, several times slower than one convolution of the same size, and
reordering images or weights between layers takes as long as computing with them. A
program of these Triton kernels works for one client, and sums are taken in a fixed
order, so no client's numbers depend on its neighbours.

Each module holds one layer. Sizes other than the number of clients N are compile-time
constants. Where the ReLU between two layers goes is said in :mod:`carvyfl.training.stacked`.
"""
