"""Profiles from private messages: what anticlustering compares costs no further ε.

A profile is a function of the client's own message, which has noise already.
"""

from __future__ import annotations

import numpy as np

from carvyfl.learning.private.head import profiles
from carvyfl.learning.private.message import Messages
from carvyfl.profiles.types import ClientTypes, class_set_types, classes_held
from carvyfl.profiles.vectors import Vectors, chance, placed, weighed

REMEDY = "raise `epsilon`; `slots` gains nothing from types then"


def private_mean_vectors(messages: Messages) -> Vectors:
    """Return label shares and the leading numbers of the class sums, times the client's size."""
    usable = np.setdiff1d(np.arange(len(messages)), list(messages.set_aside))
    rows, sizes, errors = profiles(messages.of_clients(usable))
    by_chance = chance(rows.astype(np.float64), errors)
    compared = weighed(rows.astype(np.float64), np.maximum(sizes, 1.0))
    return Vectors(placed(compared, usable, len(messages)), by_chance)


def private_mean_types(messages: Messages) -> ClientTypes:
    """Give every client the set of classes of which it seems to hold a fair part as its type."""
    rows, _, _ = profiles(messages)
    shares = rows[:, : messages.units.shape[1]].astype(np.float64)
    held = classes_held(shares)
    return class_set_types(held, messages.set_aside, method="private-means", remedy=REMEDY)
