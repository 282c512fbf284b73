"""The ways to learn about clients' data (Step 1), by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from carvyfl.core.checks import returned
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import Registry
from carvyfl.learning.private.message import Messages as PrivateMessages
from carvyfl.profiles.bias_profile import bias_profile_types, profile_form
from carvyfl.profiles.class_counts import class_count_types, count_vectors
from carvyfl.profiles.class_means import class_mean_types, mean_vectors
from carvyfl.profiles.covariates import covariate_types, covariate_vectors
from carvyfl.profiles.messages import MessageForm, Messages, OutputLayer
from carvyfl.profiles.private_means import private_mean_types, private_mean_vectors
from carvyfl.profiles.private_shares import private_types, private_vectors
from carvyfl.profiles.types import ClientTypes, given_types
from carvyfl.profiles.vectors import Floats, Vectors
from carvyfl.profiles.xmeans import xmeans_types

Known = Sequence[Any] | npt.NDArray[Any] | None
Sent = Literal["update", "class-counts", "class-means", "private-shares", "message", "nothing"]
"""What a client sends in Step 1; "update" is something of its one-epoch update, "message" the one
message of the learner ``private``."""
TELLS_CLASSES: tuple[Sent, ...] = ("class-counts", "class-means", "private-shares", "message")
"""Messages from which the vectors that are compared begin with label shares."""


@dataclass(frozen=True)
class ProfileInputs:
    """All that a profile method may use.

    ``messages`` are None where nobody was asked; ``truth`` are a simulation's true types
    (``Federation.types``), ``given`` the operator's types or covariates, where there are any.
    """

    messages: Any
    seed: int = 0
    truth: Known = None
    given: Known = None

    def asked(self, method: str) -> Any:
        """Return what the clients sent, for a method that cannot do without."""
        if self.messages is None:
            raise CarvyError(f"types '{method}' need the clients' messages; collect them first")
        return self.messages


@dataclass(frozen=True)
class ProfileMethod:
    """A way to learn about clients' data.

    ``sends`` is what a client sends; if that is nothing, none can have lied. Of an update it is
    what ``form`` makes, given where the output layer sits there, and C; None for the whole.
    ``local`` is whether every client's type is a function of its own message alone.
    ``read_vectors`` gives what anticlustering compares, where that is more than types.
    """

    name: str
    help: str
    read_types: Callable[[ProfileInputs], ClientTypes]
    sends: Sent = "update"
    form: Callable[[OutputLayer, int], MessageForm] | None = None
    local: bool = False
    read_vectors: Callable[[ProfileInputs], Vectors] | None = None

    @property
    def asks_clients(self) -> bool:
        """Whether clients are asked at all."""
        return self.sends != "nothing"

    @property
    def types_are_local(self) -> bool:
        """Whether no client can disturb another one's type."""
        return self.local or not self.asks_clients


@dataclass(frozen=True, eq=False)
class Profiles:
    """What Step 1 knows of every client; ``vectors`` where that is more than types."""

    types: ClientTypes
    vectors: Vectors | None = None

    def __len__(self) -> int:
        return len(self.types)

    def class_amounts(self, num_classes: int) -> Floats | None:
        """Return how much each client holds of every class, by its message; None if untold.

        Shape (N, C): label shares times the client's weight, zero for a client set aside.
        """
        method = PROFILE_METHODS.get(self.types.method)
        if self.vectors is None or method is None or method.sends not in TELLS_CLASSES:
            return None
        return self.vectors.rows[:, :num_classes].astype(np.float64)

    def __str__(self) -> str:
        return str(self.types)


def _of_messages(
    name: str,
    help: str,
    sends: Sent,
    read_types: Callable[[Any], ClientTypes],
    read_vectors: Callable[[Any], Vectors],
) -> ProfileMethod:
    """Return a method by which a client's message tells its type and its vector."""

    def types(inputs: ProfileInputs) -> ClientTypes:
        return read_types(inputs.asked(name))

    def vectors(inputs: ProfileInputs) -> Vectors:
        return read_vectors(inputs.asked(name))

    return ProfileMethod(name, help, types, sends, local=True, read_vectors=vectors)


def _listed(known: Known, method: str, remedy: str) -> Any:
    """Return what the operator lists, or a simulation knows, of the clients."""
    if known is None:
        raise CarvyError(f"types '{method}': {remedy}")
    return known


_GIVEN = "no types were given; list one label per client"
_TABLE = "none were given; give a row for each client"
_TRUTH = (
    "these clients have no known true types; use `types='class-means'`, the default, or list the "
    "types yourself"
)
PROFILE_METHODS: Registry[ProfileMethod] = Registry("type inference", "carvyfl.profile_methods", [
    _of_messages("class-means", "label shares and a sketch of the class means, of any data (the "
                 "default)", "class-means", class_mean_types, mean_vectors),
    ProfileMethod("bias-profile", "the set of classes a client holds, read from its own update",
                  lambda inputs: bias_profile_types(inputs.asked("bias-profile")),
                  form=profile_form, local=True),
    ProfileMethod("xmeans", "PCA and X-means on all updates together (the paper's)",
                  lambda inputs: xmeans_types(inputs.asked("xmeans"), seed=inputs.seed)),
    _of_messages("class-counts", "how many samples of each class a client holds", "class-counts",
                 class_count_types, count_vectors),
    _of_messages("private-shares", "label shares with noise: local differential privacy",
                 "private-shares", private_types, private_vectors),
    _of_messages("private-means", "label shares and class means from the message of the learner "
                 "`private`, at no further ε", "message", private_mean_types, private_mean_vectors),
    ProfileMethod("given", "types that the operator lists",
                  lambda inputs: given_types(_listed(inputs.given, "given", _GIVEN)), "nothing"),
    ProfileMethod("covariates", "numbers that the operator knows of every client",
                  lambda inputs: covariate_types(_listed(inputs.given, "covariates", _TABLE)),
                  "nothing",
                  read_vectors=lambda inputs: covariate_vectors(
                      _listed(inputs.given, "covariates", _TABLE))),
    ProfileMethod("oracle", "a simulation's true types",
                  lambda inputs: given_types(_listed(inputs.truth, "oracle", _TRUTH), "oracle"),
                  "nothing"),
])  # fmt: skip


def read_profiles(
    method: str,
    messages: Messages | PrivateMessages | None = None,
    *,
    seed: int = 0,
    truth: Known = None,
    given: Known = None,
) -> Profiles:
    """Read the clients' profiles and types from what they sent (Step 1).

    ``method`` is a name in :data:`PROFILE_METHODS`; one that asks the clients nothing needs no
    messages. ``truth`` are a simulation's true types (``Federation.types``), for "oracle";
    ``given`` the operator's types, or covariates, shape (N, d), for the methods of these names.
    """
    entry, inputs = PROFILE_METHODS.pick(method), ProfileInputs(messages, seed, truth, given)
    types = returned(entry.read_types(inputs), ClientTypes, f"types '{method}'")
    if types.method != method:  # what a certificate may claim hangs on it
        raise CarvyError(f"types '{method}' came back as those of '{types.method}'; name them so")
    if types.local != entry.types_are_local:
        fault = f"types '{method}' came back with local={types.local}"
        remedy = f"register the method with local={types.local}, or return what it says"
        raise CarvyError(f"{fault}; {remedy}")
    vectors = None if entry.read_vectors is None else entry.read_vectors(inputs)
    if vectors is not None:
        types = replace(types, warnings=types.warnings + vectors.warnings)
    return Profiles(types, vectors)
