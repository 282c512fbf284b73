"""Several methods on the same clients, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from carvyfl.core.checks import seed_number
from carvyfl.core.errors import CarvyError, shown
from carvyfl.data.clients import Federation
from carvyfl.estimator import CarvyFL, check_params
from carvyfl.groups.basis import READINGS, Reading
from carvyfl.groups.methods import GROUPINGS
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.spread import Comparison, Spread

PROVED_METHODS = (
    "take 'slots' or 'balanced', or give as `types` what you know of the clients beforehand, "
    "types or covariates"
)


def compare(
    methods: Sequence[str] | Mapping[str, CarvyFL],
    clients: Federation | Iterable[Any] | Callable[[int], Federation | Iterable[Any]],
    inputs: Any,
    labels: Any,
    *,
    num_classes: int | None = None,
    seeds: Iterable[int] = range(3),
    reading: Reading = "given_groups",
    **params: Any,
) -> Comparison:
    """Train several methods on the same clients, over seeds, and certify each.

    Parameters
    ----------
    methods
        Names of groupings, all with the parameters ``params`` of :class:`CarvyFL`; or estimators
        by name, which stay as they are: every fit uses a copy with another seed. Where
        ``groups`` is not among the parameters and ``carvy`` is among the names, ``carvy``
        chooses G for each seed, and methods that ask no client take the same.
    clients
        What :meth:`CarvyFL.fit` takes; or a function from a seed to that, to draw the clients
        anew as well.
    inputs, labels
        What is voted on, and the true classes.
    num_classes
        C, as for :meth:`CarvyFL.fit`.
    seeds
        All randomness of a fit is derived from its seed.
    reading
        Which run the certificates compare with; every method must be proved against it.

    Examples
    --------
    >>> print(compare(["carvy", "flcert"], clients, x, y, groups=5))  # doctest: +SKIP
    """
    if isinstance(methods, str):
        methods = [methods]
    followers: set[str] = set()  # methods that take the G of carvy, and ask no client
    if not isinstance(methods, Mapping):
        models = {name: CarvyFL().set_params(**params, method=name) for name in methods}
        if "carvy" in models and params.get("groups") is None:
            entries = map(GROUPINGS.pick, models)
            followers = {e.name for e in entries if e.takes_groups and not e.needs_profiles}
    elif params:
        raise CarvyError(
            f"compare: {', '.join(params)} would change the estimators given; set it in each"
        )
    else:
        models = dict(methods)
    if not isinstance(seeds, Iterable):
        raise CarvyError(
            f"`seeds` must be a sequence of whole numbers, such as range(2), not {shown(seeds)}"
        )
    numbers = tuple(seed_number(seed) for seed in seeds)
    if not models or not numbers:
        raise CarvyError("compare needs at least one method and one seed")
    if reading not in READINGS:
        raise CarvyError(f"unknown reading '{reading}'; known: {', '.join(READINGS)}")
    for name in models.keys() - followers:  # followers have the parameters of carvy
        check_params(models[name])
    if isinstance(clients, Iterator):
        clients = list(clients)  # every fit reads them

    certificates: dict[str, list[Certificate]] = {name: [] for name in models}
    for seed in numbers:
        drawn = clients(seed) if callable(clients) else clients
        # carvy first: its followers need its G, and what such a G forbids is refused there already
        for name in sorted(models, key=lambda name: name != "carvy"):
            model = CarvyFL(**{**models[name].get_params(), "seed": seed})
            if name in followers:
                model.set_params(groups=certificates["carvy"][-1].num_groups)
            basis = model.fit(drawn, num_classes).grouping_.basis
            if reading not in basis.readings:
                advice = PROVED_METHODS if basis.readings else "give `num_classes`"
                label = READINGS[reading].label
                raise CarvyError(
                    f"compare: '{name}' is not certified '{label}': {basis.because}; {advice}"
                )
            certificates[name].append(model.certify(inputs, labels).under(reading))
    curves = {name: Spread.of(each.ca() for each in row) for name, row in certificates.items()}
    groups = {name: tuple(each.num_groups for each in row) for name, row in certificates.items()}
    return Comparison(numbers, reading, curves, groups)
