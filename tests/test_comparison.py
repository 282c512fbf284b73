"""Several methods over seeds: every number is that of a model fitted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from carvyfl import CarvyError, CarvyFL, compare
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
    comparison = compared(["balanced", "flcert"], seeds=[1, 5], groups=2, **ONE_SHOT)
    assert comparison.seeds == (1, 5)
    for method, spread in comparison.methods.items():
        by_seed = []
        for seed in (1, 5):
            model = CarvyFL(method=method, seed=seed, groups=2, **ONE_SHOT).fit(CLIENTS)
            by_seed.append(model.certify(TEST.inputs, TEST.labels))
        assert spread.auc.tolist() == pytest.approx([certificate.auc() for certificate in by_seed])
        first = [certificate.ca()[0] for certificate in by_seed]
        assert spread.mean[0] == pytest.approx(sum(first) / 2)
    frame = comparison.to_frame()
    assert list(frame.columns) == ["method", "m", "mean", "sd"]
    assert frame[frame.m == 0]["mean"].tolist() == [
        spread.mean[0] for spread in comparison.methods.values()
    ]


def test_methods_that_ask_no_client_take_the_groups_that_carvy_chose() -> None:
    """As in ``carvy run``; whatever their order, and for every seed anew."""
    clients = {1: CLIENTS, 2: class_disjoint_federation(per_type=6)}
    comparison = compared(["balanced", "single", "carvy"], clients.get, seeds=[1, 2], **ONE_SHOT)
    assert list(comparison.methods) == ["balanced", "single", "carvy"]
    chosen = []
    for i, seed in enumerate(clients):
        model = CarvyFL(seed=seed, **ONE_SHOT).fit(clients[seed])
        chosen.append(model.grouping_.num_groups)
        alone = CarvyFL(method="balanced", groups=chosen[-1], seed=seed, **ONE_SHOT)
        certificate = alone.fit(clients[seed]).certify(TEST.inputs, TEST.labels)
        assert comparison.methods["balanced"].auc[i] == pytest.approx(certificate.auc())
    assert len(set(chosen)) == 2
    assert comparison.groups == {
        "balanced": tuple(chosen),
        "single": (1, 1),
        "carvy": tuple(chosen),
    }


def test_groups_found_from_messages_certify_no_method_against_whole_runs() -> None:
    given = {"seeds": [0], "reading": "honest_only", **ONE_SHOT}
    assert "'carvy' is not certified 'honest only'" in refused(["balanced", "carvy"], **given)
    known = compared(["balanced", "carvy"], types=CLIENTS.types, **given)
    assert known.groups == {"balanced": (3,), "carvy": (3,)}  # clients of a type


@pytest.mark.parametrize(
    "methods",
    [
        ["carvy", "slots"],
        ["flcert", "slots"],
        {"a": CarvyFL(**ONE_SHOT), "slots": CarvyFL(method="slots")},
    ],
)
def test_a_missing_number_of_groups_is_noticed_before_anything_is_fitted(methods: Any) -> None:
    def clients(seed: int) -> Federation:
        raise AssertionError("clients were drawn")

    given = {} if isinstance(methods, dict) else ONE_SHOT
    assert "needs the number of groups" in refused(methods, clients, **given)


def test_own_arrays_come_with_their_number_of_classes() -> None:
    arrays = [(client.train.inputs, client.train.labels) for client in CLIENTS.clients]
    given = {"seeds": [0, 1], "groups": 2, **ONE_SHOT}
    comparison = compared(["balanced"], iter(arrays), num_classes=4, **given)
    mine = CarvyFL(method="balanced", groups=2, seed=1, **ONE_SHOT)
    certificate = mine.fit(arrays, num_classes=4).certify(TEST.inputs, TEST.labels)
    assert comparison.methods["balanced"].auc[1] == pytest.approx(certificate.auc())
    before = mine.models_
    compared({"mine": mine}, lambda seed: CLIENTS, seeds=[2, 3])
    assert (mine.seed, mine.models_) == (1, before)  # an estimator stays as it is
    with pytest.warns(UserWarning, match="nothing is certified; give `num_classes`"):
        assert refused(["balanced"], arrays, **given).endswith("; give `num_classes`")


@pytest.mark.parametrize(
    ("methods", "given", "words"),
    [
        ({"a": CarvyFL()}, {"seed": 1}, "set it in each"),
        (["balanced"], {"seeds": [], "groups": 2}, "at least one method and one seed"),
        ("balanced", {"seeds": 2}, "`seeds` must be a sequence of whole numbers"),
        ("single", {"reading": "honest"}, "unknown reading 'honest'"),
        ("balanced", {"group": 2}, "did you mean 'groups'"),
    ],
    ids=range(5),
)
def test_what_cannot_be_compared_is_refused(methods: Any, given: Any, words: str) -> None:
    assert words in refused(methods, **given)


def test_a_reading_that_is_not_proved_is_refused_with_the_way_out() -> None:
    unproved = refused(["carvy"], reading="honest_only", groups=2, **ONE_SHOT)
    assert "not certified 'honest only': the groups were formed from what clients sent" in unproved
    assert "take 'slots' or 'balanced', or give as `types`" in unproved
    assert "`groups`" not in unproved  # it was given
