"""The learners by name: what clients send, how a group's model comes of it, and how it votes.

A group's module says which learner it has. Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from carvyfl.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

    from carvyfl.data.clients import Inputs
    from carvyfl.learning.backends import Backend
    from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, OnRounds
    from carvyfl.learning.models import Shape
    from carvyfl.learning.one_shot.features import Features
    from carvyfl.learning.one_shot.training import OneShotModel

RIDGE = 0.05  # λ by default, chosen on federations that are not reported (docs/results/one-shot.md)
# The mean and std of one-shot learning: a feature map sees inputs as they are stored
UNSCALED = 0.0, 1.0
OWN_TYPES = "class-means"  # What Step 1 learns of clients unless said otherwise


class Learner:
    """How a group learns; a base of learners, whose answers are those of learning in rounds.

    Attributes
    ----------
    sends
        What a client sends in Step 3: its ``update``, round by round, or its ``sums``, once.
    settings
        The settings of a run that it reads, beside what all learners do.
    stored_inputs
        Whether its models see inputs as they are stored, whatever their mean and std.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    sends: ClassVar[str] = "update"
    settings: ClassVar[tuple[str, ...]] = ()
    stored_inputs: ClassVar[bool] = False

    def owns(self, module: nn.Module) -> bool:
        """Whether this is a model of this learner."""
        return True

    def build(self, settings: Any, shape: Shape, num_classes: int, seed: int) -> nn.Module:
        """Build the model that every group trains; ``settings`` are a run's, or the estimator."""
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

    def features(self, module: nn.Module) -> Features:  # noqa: D102
        return _one_shot(module).features

    def ridge(self, module: nn.Module) -> float:  # noqa: D102
        return _one_shot(module).ridge

    def scores(  # noqa: D102
        self, module: nn.Module, inputs: Inputs, device: str | None
    ) -> Callable[[Tensor, slice], Tensor]:
        return _one_shot(module).scores_of(inputs, device)


def _one_shot(module: nn.Module) -> OneShotModel:
    from carvyfl.learning.one_shot.training import as_one_shot

    return as_one_shot(module)


# Every registered learner
LEARNERS: Registry[Learner] = Registry("learner", "carvyfl.learners", [Scaffold(), OneShot()])


def learner_of(module: nn.Module) -> Learner:
    """Return the learner that a model belongs to: the one registered last that owns it."""
    return next(entry for entry in reversed([*LEARNERS.values()]) if entry.owns(module))
