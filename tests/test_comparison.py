"""Several methods over seeds: every number is that of a model fitted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from carvyfl import CarvyError, CarvyFL, compare, plot
from carvyfl.data.clients import Federation
from support.federations import blobs, class_disjoint_federation

CLIENTS = class_disjoint_federation()
TEST = blobs(200, 60, (0, 1, 2, 3))
ONE_SHOT: dict[str, Any] = {"learner": "one-shot", "features": "none", "workers": 1}


def compared(methods: Any, clients: Any = CLIENTS, **given: Any) -> Any:
    return compare(methods, clients, TEST.inputs, TEST.labels, **given)


def refused(methods: Any, clients: Any = CLIENTS, **given: Any) -> str:
    with pytest.raises(CarvyError) as caught:
        compared(methods, clients, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_methods_are_compared_over_seeds() -> None:
    found = compared(["balanced", "flcert"], seeds=[1, 5], num_groups=2, **ONE_SHOT)
    assert found.seeds == (1, 5)
    for method, own in found.methods.items():
        by_seed = []
        for seed in (1, 5):
            model = CarvyFL(grouping=method, seed=seed, num_groups=2, **ONE_SHOT).fit(CLIENTS)
            by_seed.append(model.certify(TEST.inputs, TEST.labels))
        assert own.auc.tolist() == pytest.approx([certificate.auc() for certificate in by_seed])
        first = [certificate.ca()[0] for certificate in by_seed]
        assert own.mean[0] == pytest.approx(sum(first) / 2)
    frame = found.to_frame()
    assert list(frame.columns) == ["method", "m", "mean", "sd"]
    assert frame[frame.m == 0]["mean"].tolist() == [own.mean[0] for own in found.methods.values()]
    assert "AUC" in str(found)
    assert "\n" not in repr(found)
    assert plot(found.methods)._repr_png_().startswith(b"\x89PNG")


def test_estimators_are_compared_and_stay_as_they_are() -> None:
    drawn: list[int] = []

    def clients(seed: int) -> Federation:
        drawn.append(seed)
        return CLIENTS

    mine = CarvyFL(grouping="balanced", num_groups=2, seed=9, **ONE_SHOT)
    compared({"mine": mine}, clients, seeds=[2, 3])
    assert drawn == [2, 3]
    assert mine.seed == 9
    assert not hasattr(mine, "models_")


def test_what_cannot_be_compared_is_refused() -> None:
    assert "set it in each" in refused({"a": CarvyFL()}, seed=1)
    assert "at least one method and one seed" in refused(["balanced"], seeds=[], num_groups=2)
    unproved = refused(["carvy"], reading="honest_only", num_groups=2, **ONE_SHOT)
    assert "not certified 'honest only'" in unproved
