"""Step 1 by a few numbers a client, and Steps 1 and 2 for very many clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Federation
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import Beforehand, form_groups
from carvyfl.learning.backends import Cores, Gpus
from carvyfl.learning.recipe import Recipe
from carvyfl.profiles import asking
from carvyfl.profiles.asking import one_epoch_updates
from carvyfl.profiles.bias_profile import bias_profile_types, label_histograms
from carvyfl.profiles.messages import OutputLayer, collect
from carvyfl.profiles.methods import Profiles, read_profiles
from carvyfl.profiles.xmeans import xmeans_types
from support.federations import NUM_CLASSES, blobs, class_disjoint_federation, small_net

RECIPE = Recipe(rounds=2, lr=0.05, batch_size=8)


def mixed_federation() -> Federation:
    """Clients of two types, and some that hold every class."""
    skewed = class_disjoint_federation()
    every = tuple(range(NUM_CLASSES))
    even = [Client(blobs(n, 160, every), blobs(n, 8, (0,))) for n in range(50, 54)]
    return Federation((*skewed.clients, *even), NUM_CLASSES)


def net_without_bias() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, NUM_CLASSES, bias=False))


def updates_of(federation: Federation, net: nn.Module, engine: Any = None, **given: Any) -> Any:
    return one_epoch_updates(federation, net, RECIPE, seed=5, engine=engine or Cores(1), **given)


@pytest.mark.parametrize("net", [small_net, net_without_bias])
def test_clients_send_what_the_method_reads_and_no_more(net):
    federation = mixed_federation()
    whole = updates_of(federation, net())
    sent = updates_of(federation, net(), method="bias-profile")
    assert sent.values.shape == (len(federation), 2 * NUM_CLASSES + 1)
    assert whole.values.shape[1] == sum(p.numel() for p in net().parameters())
    one, other = (read_profiles("bias-profile", messages).types for messages in (whole, sent))
    assert other.labels.tolist() == one.labels.tolist()
    assert (other.names, other.warnings) == (one.names, one.warnings)
    np.testing.assert_array_equal(label_histograms(sent), label_histograms(whole))
    papers = updates_of(federation, net(), method="xmeans")
    np.testing.assert_array_equal(papers.values, whole.values)
    assert len(xmeans_types(papers, seed=0)) == len(federation)


def test_step_1_on_a_device_is_that_of_the_workers_however_clients_are_cut_into_lots(monkeypatch):
    federation = mixed_federation()  # of clients of different sizes
    on_workers = updates_of(federation, small_net())
    together = updates_of(federation, small_net(), Gpus("cpu"))
    monkeypatch.setattr(asking, "AT_ONCE", 3)
    in_lots = updates_of(federation, small_net(), Gpus("cpu"))
    np.testing.assert_allclose(together.values, on_workers.values, atol=1e-5)
    np.testing.assert_array_equal(in_lots.values, together.values)


class Fragile(nn.Module):
    """One step on giant inputs makes the parameter ``hidden`` NaN, and only that one."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.zeros(1))
        self.output = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        harmless = (x.abs() < 100).all().float()
        return self.output(x) + 0 * (self.hidden + harmless).sqrt()  # slope 0 · ∞ where harmful


@pytest.mark.parametrize("method", [None, "bias-profile"])
def test_an_update_that_diverged_anywhere_is_set_aside(method):
    federation = class_disjoint_federation()
    one_step = Recipe(rounds=2, lr=0.05, batch_size=1000)
    federation.clients[2].train.inputs[0] = 1e4
    given: dict[str, Any] = {"seed": 5, "engine": Cores(1), "method": method}
    updates = one_epoch_updates(federation, Fragile(), one_step, **given)
    assert updates.set_aside == {2: "holds NaN"}
    assert bias_profile_types(updates).labels[2] == -1


def test_a_model_without_output_layer_is_refused_before_training():
    net = nn.Sequential(nn.Linear(8, 16), nn.Unflatten(1, (4, 4)), nn.AvgPool1d(4), nn.Flatten())
    heard: list[int] = []
    given = {"method": "bias-profile", "progress": lambda done, total: heard.append(done)}
    with pytest.raises(CarvyError, match=r"xmeans.*given or oracle"):
        updates_of(class_disjoint_federation(), net, **given)
    assert heard == []


@pytest.mark.slow
def test_two_hundred_thousand_clients(tmp_path):
    clients, classes, pairs = 200_000, 12, 6
    rng = np.random.default_rng(0)
    truth = rng.integers(pairs, size=clients)
    messages = rng.uniform(-0.12, -0.06, size=(clients, classes + 1)).astype(np.float32)
    for offset in (0, 1):
        messages[np.arange(clients), 2 * truth + offset] = rng.uniform(0.3, 0.5, size=clients)
    messages[:, -1] = -0.9
    bad = np.arange(3, clients, 997)
    messages[bad, 5] = np.nan
    truth[bad] = -1

    updates = collect(
        messages,
        length=classes + 1,
        lr=0.01,
        steps=np.full(clients, 32),
        num_classes=classes,
        head=OutputLayer(bias=slice(0, classes), fall=slice(classes, classes + 1)),
    )
    types = bias_profile_types(updates)
    np.testing.assert_array_equal(types.labels, truth)
    assert types.names == tuple(f"classes {2 * t}+{2 * t + 1}" for t in range(pairs))

    everybody: dict[str, Any] = {"num_clients": clients, "seed": 0, "profiles": Profiles(types)}
    everybody["beforehand"] = Beforehand(truth)
    largest = int(np.bincount(truth[truth >= 0]).max())
    blind = {"cluster": 1000, "flcert": 1000, "balanced": 1000}
    for method, number in ({"slots": largest, "carvy": None} | blind).items():
        grouping = form_groups(method, num_groups=number, **everybody)
        assert grouping.num_groups in (1000, largest)
        benched = bad[:0] if method in {"flcert", "balanced"} else bad
        np.testing.assert_array_equal(grouping.benched, benched)
        held = set(truth[grouping.members(7)].tolist()) - {-1}
        assert grouping.diversity(truth)[7] == len(held) / pairs
        if method in {"carvy", "cluster", "balanced"}:
            assert np.ptp(grouping.sizes) <= 1
    crowded = form_groups("slots", num_groups=1000, **everybody)
    assert (crowded.sizes == pairs).all()  # one of each type; everybody else sits out

    grouping.save(tmp_path / "groups.json")
    assert Grouping.load(tmp_path / "groups.json") == grouping
