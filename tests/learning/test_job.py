"""Jobs: their keys, and the states they start from."""

from __future__ import annotations

import copy
import pickle

import torch

from carvyfl.learning.job import GroupResult, group_job, job_keys
from carvyfl.learning.recipe import Recipe
from support.federations import class_disjoint_federation, small_net


def test_keys_of_many_jobs_are_those_of_each_alone_in_their_order() -> None:
    federation, modules = class_disjoint_federation(), (small_net(), small_net())
    with torch.no_grad():
        next(modules[1].parameters()).add_(1)
    jobs = [
        group_job(federation, [k, k + 1], modules[k % 2], Recipe(rounds=1 + k % 3), 0)
        for k in range(len(federation) - 1)
    ]
    keys = job_keys(jobs)
    assert keys == [job.key() for job in jobs]
    assert len(set(keys)) == len(jobs)
    assert job_keys([]) == []


def test_a_copy_of_a_result_leaves_out_what_shares_its_memory() -> None:
    together = torch.arange(3000.0).reshape(1000, 3)
    result = GroupResult(together[7], (0.5,), "rounds", {3: "late"})
    copied = copy.deepcopy(result)
    assert torch.equal(copied.weights, result.weights)
    assert copied.weights.untyped_storage().nbytes() == 12
    assert (copied.accuracy, copied.stopped, copied.set_aside) == ((0.5,), "rounds", {3: "late"})
    assert len(pickle.dumps(result)) < 1000
