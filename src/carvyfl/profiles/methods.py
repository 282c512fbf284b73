"""The ways to learn about clients' data (Step 1), by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import Registry
from carvyfl.profiles.bias_profile import bias_profile_types, profile_form
from carvyfl.profiles.class_counts import class_count_types
from carvyfl.profiles.messages import MessageForm, Messages, OutputLayer, Rows
from carvyfl.profiles.types import ClientTypes, given_types
from carvyfl.profiles.xmeans import xmeans_types

Known = Sequence[int | str] | npt.NDArray[Any] | None


@dataclass(frozen=True)
class ProfileInputs:
    """All that a profile method may use.

    Attributes
    ----------
    messages
        What the clients sent, None where nobody was asked.
    truth
        A simulation's true types (``Federation.types``), if it knows them.
    given
        The operator's own types, if there are any.
    """

    messages: Messages | None
    seed: int = 0
    truth: Known = None
    given: Known = None

    def asked(self, method: str) -> Messages:
        """Return what the clients sent, for a method that cannot do without."""
        if self.messages is None:
            raise CarvyError(f"types '{method}' need the clients' messages; collect them first")
        return self.messages


@dataclass(frozen=True)
class ProfileMethod:
    """A way to learn about clients' data.

    Attributes
    ----------
    form
        What a client sends, given where the output layer sits in its one-epoch update, and C;
        None for the whole update.
    asks_clients
        Whether clients are asked at all. If not, none can have lied.
    local
        Whether every client's type is a function of its own message alone.
    counts_classes
        Whether a client sends its class counts, n_c, in the place of an update.
    """

    name: str
    help: str
    read_types: Callable[[ProfileInputs], ClientTypes]
    form: Callable[[OutputLayer, int], MessageForm] | None = None
    asks_clients: bool = True
    local: bool = False
    counts_classes: bool = False

    @property
    def types_are_local(self) -> bool:
        """Whether no client can disturb another one's type."""
        return self.local or not self.asks_clients


@dataclass(frozen=True, eq=False)
class Profiles:
    """What Step 1 knows of every client.

    Attributes
    ----------
    vectors
        float32 of shape (N, d): what each client told of its data, a function of that client
        alone. Zero for a client that was set aside; d is 0 where nobody was asked.
    types
        One reading of it: a distribution type for every client.
    """

    vectors: Rows
    types: ClientTypes

    @classmethod
    def of(cls, types: ClientTypes) -> Profiles:
        """Return profiles of which the types alone are known."""
        return cls(np.empty((len(types), 0), dtype=np.float32), types)

    def __len__(self) -> int:
        return len(self.types)

    def __str__(self) -> str:
        return str(self.types)


def _given(known: ProfileInputs) -> ClientTypes:
    if known.given is None:
        raise CarvyError("types 'given': no types were given; list one label per client")
    return given_types(known.given)


def _oracle(known: ProfileInputs) -> ClientTypes:
    if known.truth is None:
        raise CarvyError(
            "types 'oracle': these clients have no known true types; use bias-profile or given"
        )
    return given_types(known.truth, "oracle")


PROFILE_METHODS: Registry[ProfileMethod] = Registry(
    "type inference",
    "carvyfl.profile_methods",
    [
        ProfileMethod(
            "bias-profile",
            "the set of classes a client holds, read from its own update (the default)",
            lambda known: bias_profile_types(known.asked("bias-profile")),
            form=profile_form,
            local=True,
        ),
        ProfileMethod(
            "xmeans",
            "PCA and X-means on all updates together (the paper's)",
            lambda known: xmeans_types(known.asked("xmeans"), seed=known.seed),
        ),
        ProfileMethod(
            "class-counts",
            "the set of classes of which a client counts samples (the default of one-shot)",
            lambda known: class_count_types(known.asked("class-counts")),
            local=True,
            counts_classes=True,
        ),
        ProfileMethod("given", "types that the operator lists", _given, asks_clients=False),
        ProfileMethod("oracle", "a simulation's true types", _oracle, asks_clients=False),
    ],
)
"""Every way to learn about clients' data."""


def read_profiles(
    method: str,
    messages: Messages | None = None,
    *,
    seed: int = 0,
    truth: Known = None,
    given: Known = None,
) -> Profiles:
    """Read the clients' profiles and types from what they sent (Step 1).

    Parameters
    ----------
    method
        A name in :data:`PROFILE_METHODS`; one that asks the clients nothing needs no messages.
    truth
        A simulation's true types (``Federation.types``), for "oracle".
    given
        The operator's own types, for "given".
    """
    entry = PROFILE_METHODS.pick(method)
    types = entry.read_types(ProfileInputs(messages, seed, truth, given))
    if types.method != method:  # what a certificate may claim hangs on it
        raise CarvyError(f"types '{method}' came back as those of '{types.method}'; name them so")
    if types.local != entry.types_are_local:
        raise CarvyError(
            f"types '{method}' came back with local={types.local}; register the method with "
            f"local={types.local}, or return what it says"
        )
    return Profiles.of(types) if messages is None else Profiles(messages.values, types)
