"""The reference: a plain PyTorch loop over the clients (FedAvg)."""

import copy

import task
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

server = task.model()
loaders = [
    DataLoader(TensorDataset(*task.client(number)), batch_size=task.BATCH, shuffle=True)
    for number in range(task.num_clients())
]

clock = task.Clock()
for _ in range(task.ROUNDS):
    states = []
    for loader in loaders:
        net = copy.deepcopy(server).train()
        optimizer = torch.optim.SGD(net.parameters(), lr=task.LR)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        states.append(net.state_dict())
    means = {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}
    server.load_state_dict(means)
    clock.tick()
task.report(clock, task.loss(server, range(len(loaders))))
