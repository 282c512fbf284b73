"""The learners by name: what clients send, how a group's model comes of it, and how it votes.

A group's module says which learner it has. Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from carvyfl.core.progress import Phase, Report, silent
from carvyfl.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

    from carvyfl.data.clients import Federation, Inputs
    from carvyfl.learning.backends import Backend
    from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, OnRounds
    from carvyfl.learning.models import Shape
    from carvyfl.learning.one_shot.features import Features
    from carvyfl.learning.one_shot.training import OneShotModel
    from carvyfl.learning.private.message import Messages
    from carvyfl.learning.private.model import PrivateModel

RIDGE = 0.05  # λ by default, chosen on federations that are not reported (docs/results/one-shot.md)
# The mean and std of one-shot learning: a feature map sees inputs as they are stored
UNSCALED = 0.0, 1.0
OWN_TYPES = "class-means"  # What Step 1 learns of clients unless said otherwise


class Learner:
    """How a group learns; a base of learners, whose answers are those of learning in rounds.

    Attributes
    ----------
    sends
        What a client sends in Step 3: its ``update``, round by round, or its ``sums``, once; a
        ``message`` comes before Step 1 and serves all steps.
    settings
        The settings of a run that it reads, beside what all learners do.
    stored_inputs
        Whether its models see inputs as they are stored, whatever their mean and std.
    types
        What Step 1 learns of its clients, unless said otherwise.
    files
        What a run folder holds beside the models, by name, for :meth:`load`.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    sends: ClassVar[str] = "update"
    settings: ClassVar[tuple[str, ...]] = ()
    stored_inputs: ClassVar[bool] = False
    types: ClassVar[str] = OWN_TYPES
    files: ClassVar[tuple[str, ...]] = ()

    def owns(self, module: nn.Module) -> bool:
        """Whether this is a model of this learner."""
        return True

    def build(self, settings: Any, shape: Shape, num_classes: int, seed: int) -> nn.Module:
        """Build the model that every group trains; ``settings`` are a run's, or the estimator."""
        raise NotImplementedError

    def prepare(
        self, settings: Any, federation: Federation, seed: int, phase: Phase = silent
    ) -> nn.Module:
        """Check that the settings fit the clients' data, and build the model."""
        shape = federation.clients[0].train.inputs.shape[1:]
        return self.build(settings, shape, federation.num_classes, seed)

    def save(self, module: nn.Module, folder: Path) -> None:
        """Write the :attr:`files` of a model."""

    def load(self, settings: Any, shape: Shape, num_classes: int, folder: Path) -> nn.Module:
        """Build the model of a run, with the files that it left."""
        return self.build(settings, shape, num_classes, 0)

    def head_width(self, settings: Any, shape: Shape, folder: Path) -> int | None:
        """Return the features of the heads of a run; None where its models are no heads."""
        return None

    def privacy(self, module: nn.Module) -> dict[str, Any] | None:
        """Return what a record says of the privacy of what clients send; None without any."""
        return None

    def messages(
        self, module: nn.Module, federation: Federation, progress: Report
    ) -> Messages | None:
        """Have simulated clients send their message; None where there is no such message."""
        return None

    def read_messages(self, module: nn.Module, path: Path, clients: int) -> Messages:
        """Read the messages that a run kept, for its model."""
        raise NotImplementedError

    def made_up_trial(self, module: nn.Module, messages: Messages, seed: int) -> Any:
        """Return vectors, classes, and the head of any group, to compare numbers of groups."""
        raise NotImplementedError

    def train(
        self,
        jobs: Sequence[GroupJob],
        engine: Backend,
        on_rounds: OnRounds,
        checkpoints: Checkpoints | None,
    ) -> Iterator[tuple[int, GroupResult]]:
        """Train groups with models of this learner; yield (position, result) as they finish."""
        return engine.train_groups(jobs, on_rounds, checkpoints)

    def features(self, module: nn.Module) -> Features | None:
        """Return the fixed features of its models, computed once, before Step 1; None without.

        They give Step 1 the class means for nothing.
        """
        return None

    def ridge(self, module: nn.Module) -> float:
        """Return λ of the heads by which the number of groups is chosen for its models."""
        return RIDGE

    def scores(
        self, module: nn.Module, inputs: Inputs, device: str | None
    ) -> Callable[[Tensor, slice], Tensor] | None:
        """Return the logits of many models at once, where that is quicker than each on its own.

        It maps stacked weights, (G, P), and a slice of the inputs to logits, (G, n, C).
        """
        return None


class Scaffold(Learner):
    """In rounds: SCAFFOLD or FedAvg, as the recipe says."""

    name = "scaffold"
    help = "in rounds: every client trains, the server averages (Algorithms 3 and 4)"
    settings = ("model", "training")

    def build(  # noqa: D102
        self, settings: Any, shape: Shape, num_classes: int, seed: int
    ) -> nn.Module:
        from carvyfl.learning.models import build_model

        if isinstance(settings.model, str):
            return build_model(settings.model, shape, num_classes, seed)
        module: nn.Module = settings.model
        return module


class OneShot(Learner):
    """Sums over fixed features, once, and a linear head in closed form."""

    name = "one-shot"
    help = "one message per client, and a head on fixed features in closed form"
    sends = "sums"
    settings = ("features", "projection", "ridge")
    stored_inputs = True

    def owns(self, module: nn.Module) -> bool:  # noqa: D102
        from carvyfl.learning.one_shot.training import OneShotModel

        return isinstance(module, OneShotModel)

    def build(  # noqa: D102
        self, settings: Any, shape: Shape, num_classes: int, seed: int
    ) -> nn.Module:
        from carvyfl.learning.one_shot.training import one_shot_model

        chosen = settings.features, shape, num_classes, settings.ridge, settings.projection
        return one_shot_model(*chosen)

    def train(  # noqa: D102
        self,
        jobs: Sequence[GroupJob],
        engine: Backend,
        on_rounds: OnRounds,
        checkpoints: Checkpoints | None,
    ) -> Iterator[tuple[int, GroupResult]]:
        from carvyfl.learning.one_shot.training import train_one_shot

        return train_one_shot(jobs, engine.device)

    def head_width(self, settings: Any, shape: Shape, folder: Path) -> int:  # noqa: D102
        from carvyfl.learning.one_shot.features import features_for

        return features_for(settings.features, shape, settings.projection).width

    def features(self, module: nn.Module) -> Features:  # noqa: D102
        return _one_shot(module).features

    def ridge(self, module: nn.Module) -> float:  # noqa: D102
        return _one_shot(module).ridge

    def scores(  # noqa: D102
        self, module: nn.Module, inputs: Inputs, device: str | None
    ) -> Callable[[Tensor, slice], Tensor]:
        return _one_shot(module).scores_of(inputs, device)


class Private(Learner):
    """One message with noise, for all steps, and heads by nearest class mean."""

    name = "private"
    help = "one message per client, differentially private against the server, and a head from it"
    sends = "message"
    settings = ("features", "epsilon", "delta", "public")
    stored_inputs = True
    types = "private-means"
    files = ("map.safetensors",)

    def owns(self, module: nn.Module) -> bool:  # noqa: D102
        from carvyfl.learning.private.model import PrivateModel

        return isinstance(module, PrivateModel)

    def build(  # noqa: D102
        self, settings: Any, shape: Shape, num_classes: int, seed: int
    ) -> nn.Module:
        from carvyfl.learning.private.model import private_model

        return private_model(settings, shape, num_classes, self.public(settings, shape))

    def prepare(  # noqa: D102
        self, settings: Any, federation: Federation, seed: int, phase: Phase = silent
    ) -> nn.Module:
        from carvyfl.learning.private.model import check_clients, private_model

        shape = federation.clients[0].train.inputs.shape[1:]
        public = self.public(settings, shape)
        check_clients(federation, settings.delta, public)
        return private_model(settings, shape, federation.num_classes, public, phase)

    def public(self, settings: Any, shape: Shape) -> Inputs | None:
        """Return the public inputs of these settings, if they name some."""
        from carvyfl.learning.private.map import public_inputs

        if settings.public is None:
            return None
        return public_inputs(settings.public, shape, getattr(settings, "data_dir", None))

    def save(self, module: nn.Module, folder: Path) -> None:  # noqa: D102
        _private(module).map.save(folder / self.files[0])

    def load(  # noqa: D102
        self, settings: Any, shape: Shape, num_classes: int, folder: Path
    ) -> nn.Module:
        from carvyfl.learning.one_shot.features import features_for
        from carvyfl.learning.private.map import load
        from carvyfl.learning.private.model import PrivateModel

        features, private_map = features_for(settings.features, shape), load(folder / self.files[0])
        private_map.check(features, num_classes)
        return PrivateModel(features, private_map, num_classes, settings.epsilon, settings.delta)

    def head_width(self, settings: Any, shape: Shape, folder: Path) -> int:  # noqa: D102
        from carvyfl.learning.private.map import load

        return load(folder / self.files[0]).width

    def privacy(self, module: nn.Module) -> dict[str, Any]:  # noqa: D102
        return _private(module).about

    def messages(  # noqa: D102
        self, module: nn.Module, federation: Federation, progress: Report
    ) -> Messages:
        from carvyfl.learning.private.model import simulated_messages

        return simulated_messages(_private(module), federation, progress)

    def read_messages(  # noqa: D102
        self, module: nn.Module, path: Path, clients: int
    ) -> Messages:
        return _private(module).read_messages(path, clients)

    def made_up_trial(  # noqa: D102
        self, module: nn.Module, messages: Messages, seed: int
    ) -> Any:
        from carvyfl.learning.private.model import made_up_trial

        return made_up_trial(_private(module), messages, seed)

    def train(  # noqa: D102
        self,
        jobs: Sequence[GroupJob],
        engine: Backend,
        on_rounds: OnRounds,
        checkpoints: Checkpoints | None,
    ) -> Iterator[tuple[int, GroupResult]]:
        from carvyfl.learning.private.model import train_private

        return train_private(jobs)

    def features(self, module: nn.Module) -> Features:  # noqa: D102
        return _private(module).features

    def scores(  # noqa: D102
        self, module: nn.Module, inputs: Inputs, device: str | None
    ) -> Callable[[Tensor, slice], Tensor]:
        return _private(module).scores_of(inputs, device)


def _private(module: nn.Module) -> PrivateModel:
    from carvyfl.learning.private.model import as_private

    return as_private(module)


def _one_shot(module: nn.Module) -> OneShotModel:
    from carvyfl.learning.one_shot.training import as_one_shot

    return as_one_shot(module)


# Every registered learner
LEARNERS: Registry[Learner] = Registry(
    "learner", "carvyfl.learners", [Scaffold(), OneShot(), Private()]
)


def learner_of(module: nn.Module) -> Learner:
    """Return the learner that a model belongs to: the one registered last that owns it."""
    return next(entry for entry in reversed([*LEARNERS.values()]) if entry.owns(module))
