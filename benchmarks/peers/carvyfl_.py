"""CARVY-FL's loop engine on two workers: groups of PEERS_GROUP, or (0) one of all clients."""

import os

import task

from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.learning.backends import Cores
from carvyfl.learning.job import group_job
from carvyfl.learning.models import set_weights
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.store import train_groups

data, size = task.arrays(), int(os.environ["PEERS_GROUP"]) or task.num_clients()
clients = tuple(
    Client(Samples(inputs, labels), Samples(inputs[:0], labels[:0]))
    for inputs, labels in zip(data["inputs"], data["labels"], strict=True)
)
federation = Federation(clients, 10, float(data["mean"]), float(data["std"]))
count = len(clients) // size
groups = [tuple(range(first, len(clients), count)) for first in range(count)]

clock = task.Clock()
for rounds in (1, task.ROUNDS - 1)[: task.ROUNDS]:  # the first one starts the workers
    recipe = Recipe(task.ALGORITHM, rounds=rounds, lr=task.LR, lr_min=task.LR)
    jobs = [group_job(federation, group, task.model(), recipe, seed=0) for group in groups]
    results = train_groups(jobs, engine=Cores(workers=2))
    clock.tick(rounds)
net, losses = task.model(), []
for group, result in zip(groups, results, strict=True):
    set_weights(net, result.weights)
    losses.append(task.loss(net, group))
task.report(clock, sum(losses) / len(losses))
