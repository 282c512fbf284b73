"""The peer Flower: its simulation with one Ray actor per core (FedAvg)."""

import task
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message, context):
    """Train one epoch on a client's data and send the weights back."""
    torch.set_num_threads(1)
    samples = TensorDataset(*task.client(context.node_config["partition-id"]))
    net = task.model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=task.LR)
    for inputs, labels in DataLoader(samples, batch_size=task.BATCH, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": len(samples)}),
        }
    )
    return Message(content=content, reply_to=message)


@server_app.main()
def main(grid, context):
    """Run all rounds."""
    clock, net, everyone = task.Clock(), task.model(), task.num_clients()
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=everyone)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=task.ROUNDS,
        evaluate_fn=lambda round_, arrays: clock.tick() if round_ else None,
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    task.report(clock, task.loss(net, range(everyone)))


run_simulation(
    server_app,
    client_app,
    num_supernodes=task.num_clients(),
    backend_config={
        "init_args": {"num_cpus": 2},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    },
)
