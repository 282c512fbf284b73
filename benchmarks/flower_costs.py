"""What a federation on Flower costs: seconds a round against the number of nodes, and bytes.

Starts a SuperLink and SuperNodes on localhost, first with an app that does nothing, then
with the template of `carvy flower init`, in rounds and in one shot, and prints a JSON object a
measurement:

    python -m benchmarks.flower_costs --nodes 5 10 20 --rounds 4
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from msgspec import UNSET

from carvyfl.core.environment import usable_cores
from carvyfl.runs.folder import RunFolder
from support.processes import Processes, connection, free_ports, processes

NO_OP = """
import time
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.2)
    for made in range(1, 1 + context.run_config["rounds"]):
        grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes])
        print(f"no-op has made round {made}", flush=True)
    print("saved in nothing", flush=True)
"""


def prepare(flower: Processes, nodes: int, rounds: int) -> None:
    """Write both apps: the template, and one that does nothing."""
    flower.run("carvy flower init federation")
    flower.run("carvy flower init nothing")
    app = flower.folder / "nothing"
    (app / "carvy_app" / "apps.py").write_text(NO_OP)
    settings = (app / "pyproject.toml").read_text().partition("[tool.flwr.app.config]")[0]
    settings = settings.replace('"carvy-app"', '"no-op"')
    settings += f"[tool.flwr.app.config]\nnodes = {nodes}\nrounds = {rounds}\n"
    (app / "pyproject.toml").write_text(settings)


def start(flower: Processes, nodes: int) -> None:
    """Start a SuperLink and so many SuperNodes, without TLS."""
    port, *ports = free_ports(nodes + 1)
    flower.start(
        "superlink",
        "flower-superlink --insecure --disable-runtime-dependency-installation "
        f"--host 127.0.0.1 --port {port}",
    )
    flower.until("SuperLink is up", lambda: "startup complete" in flower.log("superlink"))
    connection(flower, {"address": f'"127.0.0.1:{port}"', "insecure": "true"})
    for node in range(nodes):
        flower.start(
            f"node-{node}",
            f"flower-supernode --insecure --superlink 127.0.0.1:{port} --port {ports[node]} "
            f"--node-config 'partition-id={node} num-partitions={nodes}'",
        )


def seconds_per_round(flower: Processes, app: str, settings: str, rounds: int) -> float:
    """Run an app and return the seconds between its first and its last round, per round."""
    flower.start(f"{app}-log", f"flwr run {app} link --stream --run-config '{settings}'")

    def made(round_: int) -> bool:
        return f"has made round {round_}" in flower.log(f"{app}-log")

    flower.until("the first round", lambda: made(1), 900)
    first = time.monotonic()
    flower.until("the last round", lambda: made(rounds), 900)
    last = time.monotonic()
    flower.until("the end", lambda: "saved in" in flower.log(f"{app}-log"), 900)
    return (last - first) / (rounds - 1)


def run_in_one_shot(flower: Processes, settings: str) -> None:
    """Run the template's app to its end, with one-shot learning."""
    settings += ' carvy.learner="one-shot"'
    flower.start("once-log", f"flwr run federation link --stream --run-config '{settings}'")
    flower.until("the end", lambda: "saved in" in flower.log("once-log"), 900)


def costs(folder: Path, nodes: int) -> dict[str, object]:
    """Return the seconds of a run, from its first message to its record, and bytes per client."""
    record = RunFolder(folder).record()
    assert record.deployment is not UNSET
    return {
        "weights": int(RunFolder(folder).models("carvy").weights.shape[1]),
        "seconds": record.seconds,
        "messages_per_client": sum(
            counts["messages"] for counts in record.deployment.traffic.values()
        )
        / nodes,
        "bytes_per_client": {
            step: {way: round(counts[way] / nodes) for way in ("down", "up")}
            for step, counts in record.deployment.traffic.items()
        },
    }


def measure(nodes: int, rounds: int, model: str) -> dict[str, object]:
    """Measure one size of federation."""
    with tempfile.TemporaryDirectory() as folder, processes(Path(folder)) as flower:
        prepare(flower, nodes, rounds)
        start(flower, nodes)
        nothing = seconds_per_round(flower, "nothing", f"rounds={rounds}", rounds)
        settings = (
            # One group of everybody.
            f'carvy.method="carvy" carvy.groups=1 carvy.rounds={rounds} carvy.min-clients={nodes} '
            f'carvy.model="{model}"'
        )
        ours = seconds_per_round(flower, "federation", f'{settings} carvy.out="run"', rounds)
        run_in_one_shot(flower, f'{settings} carvy.out="once"')
        return {
            "nodes": nodes,
            "cores": usable_cores(),
            "load": round(os.getloadavg()[1], 1),  # of the last five minutes: ours, and others'
            "model": model,
            "rounds": rounds,
            "seconds_per_round": round(ours, 1),
            "seconds_per_round_no_op": round(nothing, 1),
            **costs(Path(folder) / "run", nodes),
            "one_shot": costs(Path(folder) / "once", nodes),
        }


def main() -> None:
    """Measure every size asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--model", default="compact-cnn")
    arguments = parser.parse_args()
    for nodes in arguments.nodes:
        print(json.dumps(measure(nodes, arguments.rounds, arguments.model)), flush=True)


if __name__ == "__main__":
    main()
