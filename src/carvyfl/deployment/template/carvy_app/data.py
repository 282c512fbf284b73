"""Where the data comes from: the only file to change for data of your own.

As it stands, every client holds a part of the images that come with carvyfl, two of the ten
classes each. The part is chosen by ``partition-id`` in the SuperNode's ``--node-config``.
"""

from flwr.app import Context

from carvyfl.federation.clients import Client
from carvyfl.federation.datasets import DataSet, load
from carvyfl.federation.partitions import build_federation


def my_data(context: Context) -> Client:
    """Return this client's data: (inputs, labels) will do, or a torch Dataset.

    Runs on the client's machine; nothing it returns leaves it.
    """
    federation = build_federation(
        load("embedded"),
        "class-disjoint",
        num_clients=int(context.node_config["num-partitions"]),
        samples=int(context.run_config["samples"]),
        seed=int(context.run_config["carvy.seed"]),
        validation=20,
    )
    return federation.clients[int(context.node_config["partition-id"])]


def test_data(context: Context) -> DataSet:
    """Return what the certified accuracy is measured on; (inputs, labels) will do.

    Runs on the server's machine.
    """
    return load("embedded")
