"""The high-level API: ``fit`` on clients' data, ``predict``, ``certify``."""

from __future__ import annotations

import contextlib
import html
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from carvyfl import pipeline
from carvyfl.core.checks import seed_number, whole_number
from carvyfl.core.errors import CarvyError, call_text
from carvyfl.core.progress import Phase, Report, silent, visible
from carvyfl.core.registry import ELSEWHERE, NamedParameters, pick
from carvyfl.data.clients import Federation, as_array, as_inputs
from carvyfl.data.own_data import CLIENT_BY_CLIENT, checked_federation, federation_from_arrays
from carvyfl.group_count import GroupCount, aimed_level
from carvyfl.groups.coins import Coins
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.backends import make_backend
from carvyfl.learning.job import GroupResult
from carvyfl.learning.learners import LEARNERS, OWN_TYPES, UNSCALED, learner_of
from carvyfl.learning.models import num_outputs
from carvyfl.learning.one_shot.features import Function
from carvyfl.learning.recipe import Recipe, lost_groups
from carvyfl.learning.scaffold.client import prepared
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import TRAINING, Compute, Setup
from carvyfl.privacy.statement import guarantee
from carvyfl.profiles.methods import Profiles
from carvyfl.settings import LISTED, GroupingSettings, LearningSettings, check_privacy_asked
from carvyfl.voting.certificate import Certificate, certify, unanswered
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import NO_VOTE, Votes, predict

_DERIVED = (
    "the number of classes was taken from the clients' labels, so one client could reach every "
    "group and nothing is certified; give `num_classes`"
)
_TOLD_BY_CLASSES = (
    "the learner 'private' needs `num_classes`: taken from the clients' labels it would tell of a "
    "single sample, which ε does not cover"
)
_FROM_ONE = (
    "the labels start at 1, but classes at 0: nobody has class 0; subtract 1 from the labels, or "
    "give `num_classes` if that is meant"
)
_ONE_CLIENT = (
    "one client makes one group, and nothing is certified against any malicious client; give an "
    "entry for each of several clients"
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Parameters(LearningSettings, GroupingSettings, NamedParameters):
    """The parameters of :class:`CarvyFL`; most are settings of a run, too."""

    # In Python some may be given as values where a file has names.
    model: str | nn.Module = field(default="compact-cnn", kw_only=False)  # type: ignore[assignment]
    """A registered model's name, or any ``torch.nn.Module`` that maps a batch to logits; its
    present weights are the initial ones. One-shot learning does not use it."""
    features: str | nn.Module | Function = "scattering"  # type: ignore[assignment]
    """For ``one-shot`` and ``private``: a registered feature map, a frozen ``torch.nn.Module`` or a
    function of inputs, bytes scaled to 0…1; ``none`` if the inputs are embeddings already."""
    public: str | Path | npt.NDArray[Any] | None = None  # type: ignore[assignment]
    """For ``private``: public inputs that its map is made of, an array, an npy file or the name of
    a data set; nobody's secret, and fixed beforehand. None takes synthetic images."""
    types: str | Sequence[int | str] | npt.NDArray[Any] = OWN_TYPES  # type: ignore[assignment]
    """What Step 1 learns of clients, by name, or what you know of them: a type per client, or
    numbers of each client (covariates), shape (N, d)."""
    method: str = "carvy"
    """How groups are formed: {groupings}."""
    coins: Coins | None = None
    """What random slots are drawn from, for one ``fit``: coins whose commitment was published
    before the clients' data were fixed (:func:`~carvyfl.groups.coins.draw_coins`). None simulates
    coins, from the seed."""
    engine: str = "auto"
    """``loop`` (CPU cores), ``batched`` (GPUs) or ``auto`` (a GPU where there is one)."""
    workers: int | None = None
    """Worker processes; default one per core. Results do not depend on it."""
    store: str | Path | None = None
    """A folder in which finished groups are kept and found again; None keeps nothing."""
    progress: Report | bool | None = None
    """True shows how far ``fit`` has come, False nothing; None shows it on a terminal and in a
    notebook. A function is called with (work done, all work) while groups train."""


class CarvyFL(_Parameters):
    """Federated learning whose predictions carry a certificate.

    The parameters are the settings of :class:`~carvyfl.settings.LearningSettings` and
    :class:`~carvyfl.settings.GroupingSettings`, under the names that the command line and files
    give them, and those of where to compute; ``help(CarvyFL)`` and the reference list them. They
    are kept as given and checked by ``fit``. ``get_params``, ``set_params`` and scikit-learn's
    ``clone`` work as for its estimators.

    Attributes
    ----------
    federation_, profiles_, group_count_, grouping_, results_, models_, privacy_
        What ``fit`` learned: the clients as checked, their profiles and types (None where
        the grouping needs none), how G was chosen (None where it was set), the groups, what
        happened in each group's training, the group models, and the differential privacy of what
        clients sent, in words (None where they send numbers without noise).
    """

    __setattr__ = object.__setattr__  # an estimator's parameters may be changed between fits

    # What scikit-learn copies and changes estimators by; its base class takes a second to import.

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, as they were given; none has parameters of its own."""
        return {name: getattr(self, name) for name in _DEFAULTS}

    def set_params(self, **params: Any) -> CarvyFL:
        """Change parameters of the constructor; the next ``fit`` uses them."""
        for name, value in params.items():
            pick(_DEFAULTS, name, "parameter of CarvyFL")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        return call_text("CarvyFL", self.get_params(), _DEFAULTS, first=["model"])

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the parameters that differ, and what was fitted."""
        fitted = "not fitted yet"
        if hasattr(self, "grouping_"):
            groups = f"{self.grouping_.num_groups:,} groups"
            fitted = f"fitted: {len(self.federation_):,} clients in {groups}"
            if not self.grouping_.basis.readings:
                fitted += ", nothing certified"
            if self.privacy_:
                fitted += f"</p><p>{html.escape(self.privacy_)}"
        return f"<pre>{html.escape(repr(self))}</pre><p>{fitted}</p>"

    def fit(self, clients: Federation | Iterable[Any], num_classes: int | None = None) -> CarvyFL:
        """Run Steps 1 to 3 on the clients' data.

        Parameters
        ----------
        clients
            A :class:`~carvyfl.data.clients.Federation`, or one entry per
            client: (inputs, labels), a torch ``Dataset`` or a ``Client``.
        num_classes
            C. A federation knows its own, and a module has that many outputs; for a model by
            name it should be given. Else it is the largest label of all clients plus one, and
            nothing is certified: one client could reach every group's model through it.
        """
        check_params(self)
        seed = seed_number(self.seed)
        if num_classes is not None and np.ndim(num_classes) > 0:
            raise CarvyError(f"`num_classes` is an array; {CLIENT_BY_CLIENT}")
        if isinstance(clients, Federation):
            federation = checked_federation(clients, num_classes)
        else:
            federation = federation_from_arrays(clients, num_classes=num_classes, seed=seed)
        if LEARNERS.pick(self.learner).stored_inputs:
            federation = replace(federation, mean=UNSCALED[0], std=UNSCALED[1])
        else:
            federation = self._with_outputs(federation)
        if federation.derived:
            if LEARNERS.pick(self.learner).sends == "message":
                raise CarvyError(_TOLD_BY_CLASSES)
            warnings.warn(_DERIVED, stacklevel=2)
            if min(int(client.train.labels.min()) for client in federation.clients) == 1:
                warnings.warn(_FROM_ONE, stacklevel=2)
        compute, settings = self._compute(self._phase), self._settings()
        module = LEARNERS.pick(self.learner).prepare(self, federation, seed, self._phase)
        setup = Setup(federation, module, self.training, seed)
        pipeline.check_setup(setup)
        pipeline.check_methods([self.method], settings, setup)
        pipeline.compute_features(setup, compute)
        setup = pipeline.hear(setup, compute)
        formed = pipeline.form_all([self.method], settings, setup, compute, self.coins)
        for warning in formed.warnings if len(federation) > 1 else (_ONE_CLIENT,):
            warnings.warn(warning, stacklevel=2)
        grouping = formed.groupings[self.method]
        (results,) = pipeline.train({"": pipeline.plan_training(setup, grouping)}, compute).values()
        for warning in lost_groups([result.stopped for result in results]):
            warnings.warn(warning, stacklevel=2)
        self.federation_: Federation = federation
        self.profiles_: Profiles | None = formed.profiles
        self.group_count_: GroupCount | None = formed.count
        self.grouping_: Grouping = grouping
        self.results_: list[GroupResult] = results
        self.models_: GroupModels = pipeline.gather_models(setup, results)
        self.privacy_: str | None = None if self._budget is None else guarantee(*self._budget)
        return self

    @property
    def _budget(self) -> tuple[float, float] | None:
        """ε and δ of what every client sent; None where that was not private."""
        module = self.models_.module
        about = learner_of(module).privacy(module)
        return None if about is None else (about["epsilon"], about["delta"])

    def votes(self, inputs: Any) -> Votes:
        """Return what every group votes on every input, shape (G, n)."""
        if not hasattr(self, "models_"):
            raise CarvyError("this CarvyFL has not been fitted; call fit(clients) first")
        trained = self.federation_.clients[0].train.inputs
        inputs = as_inputs(inputs, trained.shape[1:], str(trained.dtype))
        return pipeline.cast_votes(self.models_, inputs, self._compute(silent))

    def predict(self, inputs: Any) -> npt.NDArray[np.int64]:
        """Return the plurality vote on every input (Algorithm 5), shape (n,).

        It is -1 where no group votes, with a warning; where no group votes on any, that is an
        error.
        """
        answers = predict(self.votes(inputs))
        if (answers == NO_VOTE).all():
            lost = lost_groups([result.stopped for result in self.results_])
            overflow = "the models' outputs are not finite; check the scale of the inputs"
            raise CarvyError(f"no group votes on any input: {(lost or [overflow])[0]}")
        for warning in unanswered(answers):
            warnings.warn(warning, stacklevel=2)
        return answers

    def certify(self, inputs: Any, labels: Any = None) -> Certificate:
        """Return the predictions with what they withstand.

        Parameters
        ----------
        inputs
            Shape (n, …), as the clients' inputs. Where those were uint8, whole numbers
            from 0 to 255 of any type, or floats from 0 to 1, mean the same pixels.
        labels
            The true classes, for certified accuracy; without them the
            certificate holds predictions and radii.
        """
        truth = None if labels is None else as_array(labels, "labels")
        certificate = certify(self.votes(inputs), truth, self.grouping_.basis)
        certificate = replace(certificate, budget=self._budget)
        doubts = [*certificate.warnings]
        if truth is not None and self.group_count_ is not None:
            doubts += self.group_count_.missed_by(float(certificate.ca()[0]))
        for warning in doubts:
            warnings.warn(warning, stacklevel=2)
        return certificate

    def score(self, inputs: Any, labels: Any) -> float:
        """Return the accuracy (0…1) with no malicious client, CA(0) / 100."""
        return float(self.certify(inputs, labels).ca()[0]) / 100

    def _with_outputs(self, federation: Federation) -> Federation:
        """Take C from the outputs of the user's module, not from the clients' labels."""
        if not (federation.derived and isinstance(self.model, nn.Module)):
            return federation
        first = federation.clients[0].train.inputs
        outputs = num_outputs(self.model, prepared(first[:1], federation.mean, federation.std))
        if outputs is None:
            return federation  # which is refused with the reason, later
        fixed = replace(federation, num_classes=outputs, derived=())
        # a client with a label beyond the outputs is refused by its number
        return fixed if federation.num_classes <= outputs else checked_federation(fixed)

    def _settings(self) -> GroupingSettings:
        shared = {field.name: getattr(self, field.name) for field in fields(GroupingSettings)}
        if shared["groups"] is not None:
            shared["groups"] = whole_number(shared["groups"], "groups")
        if isinstance(self.types, str) and self.types == OWN_TYPES:
            shared["types"] = LEARNERS.pick(self.learner).types
        if not isinstance(self.types, str):
            rows = len(self.types) > 0 and not isinstance(self.types[0], str)
            kind = "covariates" if rows and np.ndim(self.types[0]) == 1 else "given"
            shared |= {"types": kind, LISTED[kind]: self.types}
        return GroupingSettings(**shared)

    def _compute(self, phase: Phase) -> Compute:
        workers = None if self.workers is None else whole_number(self.workers, "workers")
        store = None if self.store is None else GroupStore(Path(self.store))
        return Compute(make_backend(self.engine, workers=workers), store, phase)

    def _phase(self, title: str) -> AbstractContextManager[Report]:
        """Show a part of ``fit`` as the user asked for it; a function hears of training alone."""
        if self.progress is None or self.progress is True:
            return visible(title, always=self.progress is True)
        if callable(self.progress) and title.startswith(TRAINING):
            return contextlib.nullcontext(self.progress)
        return silent(title)


def check_params(model: CarvyFL) -> None:
    """Refuse parameters with which no fit can work; ``fit`` checks the others on its way."""
    for name, (kind, words) in _KINDS.items():
        value = getattr(model, name)
        if not isinstance(value, kind):
            wanted = words.format(value=value, kind=type(value).__name__)
            raise CarvyError(f"{name} must be {wanted}")
    LEARNERS.pick(model.learner)
    if any(getattr(model, name) != _DEFAULTS[name] for name in ("epsilon", "delta")):
        check_privacy_asked(model.learner, model.types if isinstance(model.types, str) else None)
    aimed_level(model.aim)
    entry = GROUPINGS.pick(model.method)
    if entry.needs_groups and model.groups is None:
        early = " before any client is heard" if entry.needs_profiles else ""
        raise CarvyError(f"method '{entry.name}' needs the number of groups{early}; set `groups`")


_DEFAULTS = {"model": _Parameters.model, **vars(_Parameters())}

ELSEWHERE.update(
    num_groups="an older name; write `groups`",
    grouping="an older name; write `method`",
    recipe="an older name; write `training`",
)

_KINDS: dict[str, tuple[Any, str]] = {
    "model": (
        str | nn.Module,
        "a name or a torch module, not {kind}; give an instance, not its class",
    ),
    "training": (Recipe, "a Recipe, not {kind}; write training=Recipe(…)"),
    "coins": (Coins | None, "Coins or None, not {kind}; write coins=draw_coins()"),
    "store": (str | os.PathLike | None, "a folder's path or None, not {value!r}"),
    "progress": (
        bool | Callable | None,
        "a function of (work done, all work), True, False or None, not {value!r}",
    ),
}

_ONE_CLIENT = (
    "one client makes one group, and nothing is certified against any malicious client; give an "
    "entry for each of several clients"
)
