"""Several methods on the same clients, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from carvyfl.core.checks import seed_number
from carvyfl.core.errors import CarvyError, shown
from carvyfl.data.clients import Federation
from carvyfl.estimator import CarvyFL, check_params
from carvyfl.groups.basis import READINGS, Basis, Reading
from carvyfl.groups.methods import GROUPINGS
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.spread import Comparison, Spread


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
    followers: set[str] = set()
    if isinstance(methods, Mapping):
        models = dict(methods)
        if params:
            raise CarvyError(
                f"compare: {', '.join(params)} would change the estimators given; set it in each"
            )
    else:
        models = {name: CarvyFL().set_params(**params, method=name) for name in methods}
        if "carvy" in models and params.get("groups") is None:
            # those that use nothing else of what clients send
            entries = map(GROUPINGS.pick, models)
            followers = {own.name for own in entries if own.takes_groups and not own.needs_profiles}
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

    found: dict[str, list[Certificate]] = {name: [] for name in models}
    for seed in numbers:
        drawn = clients(seed) if callable(clients) else clients
        # carvy first: its followers need its G, and what G found from messages does not allow to
        # be certified is refused for carvy already
        for name in sorted(models, key=lambda name: name != "carvy"):
            own = CarvyFL(**{**models[name].get_params(), "seed": seed})
            if name in followers:
                own.set_params(groups=found["carvy"][-1].num_groups)
            basis = own.fit(drawn, num_classes).grouping_.basis
            if reading not in basis.readings:
                raise _not_proved(name, basis, reading)
            found[name].append(own.certify(inputs, labels).under(reading))
    curves = {name: Spread.of(one.ca() for one in own) for name, own in found.items()}
    groups = {name: tuple(one.num_groups for one in own) for name, own in found.items()}
    return Comparison(numbers, reading, curves, groups)


def _not_proved(name: str, basis: Basis, reading: Reading) -> CarvyError:
    """Say why a method has no certificate of a reading, and what to do."""
    way_out = (
        "take 'slots' or 'balanced', or give as `types` what you know of the clients beforehand, "
        "types or covariates"
        if basis.readings
        else "give `num_classes`"
    )
    label = READINGS[reading].label
    return CarvyError(f"compare: '{name}' is not certified '{label}': {basis.because}; {way_out}")
