"""Where the data comes from: the only file to change for data of your own.

As it stands, every client holds a part of the images that come with carvyfl, two of the ten
classes each. The part is chosen by ``partition-id`` in the SuperNode's ``--node-config``.
"""

from functools import cache

from flwr.app import Context

from carvyfl.data.clients import Client, Federation
from carvyfl.data.datasets import DataSet, load
from carvyfl.data.partitions import build_federation


def my_data(context: Context) -> Client:
    """Return this client's data: (inputs, labels) will do, or a torch Dataset.

    Runs on the client's machine, and what it returns stays there. What is computed from it leaves
    the machine, and the learner says what that is: README.md has the list. If this fails the
    server gets one word: what an exception says stays in the client's log.
    """
    node, run = context.node_config, context.run_config
    parts = demonstration(int(node["num-partitions"]), int(run["samples"]), int(run["carvy.seed"]))
    return parts.clients[int(node["partition-id"])]


def test_data(context: Context) -> DataSet:
    """Return what the certified accuracy is measured on; (inputs, labels) will do.

    Runs on the server's machine.
    """
    return load("embedded")


@cache
def demonstration(clients: int, samples: int, seed: int) -> Federation:
    """Split the images that come with carvyfl over so many clients."""
    return build_federation(
        load("embedded"),
        "class-disjoint",
        num_clients=clients,
        samples=samples,
        seed=seed,
        validation=20,
    )
