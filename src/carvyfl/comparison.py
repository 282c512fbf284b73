"""Several methods on the same clients, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from carvyfl.core.checks import seed_number
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Federation
from carvyfl.estimator import CarvyFL
from carvyfl.groups.basis import READINGS, Reading
from carvyfl.voting.certificate import Percent
from carvyfl.voting.spread import Comparison, Spread


def compare(
    methods: Sequence[str] | Mapping[str, CarvyFL],
    clients: Federation | Callable[[int], Federation],
    inputs: Any,
    labels: Any,
    *,
    seeds: Iterable[int] = range(3),
    reading: Reading = "given_groups",
    **params: Any,
) -> Comparison:
    """Train several methods on the same clients, over seeds, and certify each.

    Parameters
    ----------
    methods
        Names of groupings, all with the parameters ``params`` of :class:`CarvyFL`; or estimators
        by name, which stay as they are: every fit uses a copy with another seed.
    clients
        The federation; or a function from a seed to one, to draw the clients anew as well.
    inputs, labels
        What is voted on, and the true classes.
    seeds
        All randomness of a fit is derived from its seed.
    reading
        Which run the certificates compare with; every method must be proved against it.

    Examples
    --------
    >>> print(compare(["carvy", "flcert"], clients, x, y, num_groups=5))  # doctest: +SKIP
    """
    if isinstance(methods, str):
        methods = [methods]
    if not isinstance(methods, Mapping):
        methods = {name: CarvyFL(**params, grouping=name) for name in methods}
    elif params:
        raise CarvyError(
            f"compare: {', '.join(params)} would change the estimators given; set it in each"
        )
    numbers = tuple(seed_number(seed) for seed in seeds)
    if not methods or not numbers:
        raise CarvyError("compare needs at least one method and one seed")
    found: dict[str, list[Percent]] = {name: [] for name in methods}
    for seed in numbers:
        federation = clients(seed) if callable(clients) else clients
        for name, model in methods.items():
            own = CarvyFL(**{**model.get_params(), "seed": seed}).fit(federation)
            read = own.certify(inputs, labels).under(reading)
            if read is None:
                raise CarvyError(
                    f"compare: '{name}' is not certified '{READINGS[reading].label}' "
                    f"({own.grouping_.basis.because}); set `num_groups` and take 'slots' in place "
                    "of 'carvy', or choose another reading"
                )
            found[name].append(read.ca())
    return Comparison(numbers, reading, {name: Spread.of(own) for name, own in found.items()})
