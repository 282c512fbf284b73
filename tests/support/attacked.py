"""A federation of small pictures, to be attacked."""

from __future__ import annotations

from torch import nn

from carvyfl.attacks.campaign import AttackedRun
from carvyfl.data.clients import Client, Federation
from carvyfl.data.datasets import DataSet
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import Compute, Setup
from support.federations import corners

MEAN, STD = 0.3, 0.25


def attacked_pictures(module: nn.Module, recipe: Recipe) -> AttackedRun:
    """Let ten clients hold pictures of four classes, and 80 be there to test on."""
    clients = tuple(Client(corners(n, 16 + n), corners(100 + n, 8)) for n in range(10))
    data = DataSet("corners", corners(200, 60), corners(201, 80), 4, MEAN, STD, tuple("abcd"))
    setup = Setup(Federation(clients, 4, MEAN, STD), module, recipe, 4)
    return AttackedRun(data, setup, Compute.on_cores(1))
