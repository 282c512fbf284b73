"""What Step 1 refuses: messages, saved and given types, covariates, vectors, ε, methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from carvyfl.core.errors import CarvyError
from carvyfl.profiles.asking import message_form
from carvyfl.profiles.covariates import covariate_vectors, read_covariates
from carvyfl.profiles.messages import OutputLayer, collect
from carvyfl.profiles.methods import PROFILE_METHODS, ProfileMethod, read_profiles
from carvyfl.profiles.private_shares import noise_for_shares
from carvyfl.profiles.types import ClientTypes, given_types
from carvyfl.profiles.vectors import load_vectors
from support.registries import registered

ROWS = np.zeros((5, 3), np.float32)
TYPES: dict[str, Any] = {
    "labels": [1, -1, 0, 1],
    "method": "bias-profile",
    "local": True,
    "names": ["classes 0+1", "class 2"],
    "set_aside": {"1": "holds NaN"},
}
TABLES: list[Any] = [[[1.0], [np.nan]], [[]], [1.0, 2.0], [["a"], ["b"]]]
Refused = Callable[[Path], object]


def gather(messages: Any, **options: Any) -> Refused:
    return lambda _: collect(messages, length=6, num_classes=2, **options)


def saved(**changes: Any) -> Refused:
    return lambda _: ClientTypes.from_json({**TYPES, **changes})


def vectors(rows: Any, by_chance: Any = 0.5) -> Refused:
    def refused(folder: Path) -> None:
        np.savez(folder / "profiles.npz", rows=rows, by_chance=np.asarray(by_chance))
        load_vectors(folder / "profiles.npz", 5)

    return refused


def table(text: str) -> Refused:
    def refused(folder: Path) -> None:
        (folder / "clients.csv").write_text(text)
        read_covariates(folder / "clients.csv")

    return refused


def method(name: str, messages: Any = None, **entry: Any) -> Refused:
    """Read profiles by a registered method, or by one that returns types of other makers."""

    def refused(_: Path) -> None:
        if not entry:
            read_profiles(name, messages)
            return
        with registered(PROFILE_METHODS, ProfileMethod(name, "", **entry)):
            read_profiles(name)

    return refused


REFUSALS: list[tuple[Refused, str]] = [
    (gather([]), "none of 0 clients"),
    (gather([None, np.zeros(3)]), "none of 2 clients .*client 0: no message"),
    (gather([np.zeros(6)], steps=[1, 2]), "one per client"),
    (gather(np.zeros((3, 7))), "none of 3 clients.*wrong shape"),
    (gather(np.zeros(3)), "none of 3 clients.*wrong shape"),
    (gather(np.zeros((3, 6, 1))), "none of 3 clients.*wrong shape"),
    (lambda _: ClientTypes.from_json({}), "client types: not a saved"),
    (saved(labels="no"), "client types: not a saved"),
    (saved(labels=[0, -1, 0, 2]), "client types: labels must use every number from 0 to 1"),
    (saved(labels=[1, 1, 0, 1]), "exactly the clients set aside must have type -1"),
    (saved(names=["a", "a"]), "two types have the same name"),
    (saved(set_aside=[]), "client types: not a saved"),
    (saved(set_aside={}), "exactly the clients set aside"),
    *[
        (lambda _, labels=labels: given_types(labels), "given types")
        for labels in ([], [[1, 2]], [1.5, 2.0], [1, "a"], ["a", 1], [None], [True])
    ],
    *[
        (lambda _, rows=rows: covariate_vectors(rows), "covariates")
        for rows in TABLES
    ],
    (table("a,b\n"), "a row for each client"),
    (table("a,b\n1,2\n3\n"), "row 3: 1 cells where the header has 2"),
    (table(""), "give a header"),
    (lambda folder: read_covariates(folder / "absent"), "cannot read the covariates"),
    (vectors(ROWS[:4]), "no profiles of 5 clients"),
    (vectors(ROWS.astype(float)), "no profiles of 5 clients"),
    (vectors(ROWS[:, 0]), "no profiles of 5 clients"),
    (vectors(ROWS + np.nan), "no profiles of 5 clients"),
    (vectors(ROWS, [0.5]), "no profiles of 5 clients"),
    *[
        (lambda _, epsilon=epsilon: noise_for_shares(epsilon), "epsilon")
        for epsilon in (0.0, -1.0, np.nan, np.inf, 101.0, 1e300)
    ],
    (method("given"), "list one label"),
    (method("covariates"), "a row for each client"),
    (method("oracle"), "no known true types"),
    (method("xmeans"), "types 'xmeans' need the clients' messages"),
    (method("bias-profile"), "types 'bias-profile' need the clients' messages"),
    (method("bias_profile"), "did you mean 'bias-profile'"),
    (method("bias-profile", collect([np.zeros(3)], length=3, num_classes=3, head=OutputLayer())),
     "xmeans.*given or oracle"),
    (method("class-counts", collect([np.zeros(3)], length=3, num_classes=3)), "counts a sample"),
    (lambda _: message_form(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), 5, "class-means"),
     r"last layer torch\.nn\.Linear with 5 outputs"),
    (method("asked", read_types=lambda _: given_types([0, 1]), local=True), "those of 'given'"),
    (method("asked", read_types=lambda _: given_types([0, 1], "asked")), "register the method"),
    (method("asked", read_types=lambda _: [0, 1]), "'asked' must return a ClientTypes, not list"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "message"), REFUSALS)
def test_refusals_are_one_line(refused: Refused, message: str, tmp_path: Path) -> None:
    with pytest.raises(CarvyError, match=message) as caught:
        refused(tmp_path)
    assert "\n" not in str(caught.value)
