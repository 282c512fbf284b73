"""The four steps one by one, with the plain functions under ``CarvyFL`` and ``carvy run``.

Every step takes the value of the step before, and each value can be printed,
saved and checked by itself:

Federation → Messages → ClientTypes → Grouping → GroupModels → Votes → Certificate

Run it with ``python examples/step_by_step.py``; it takes a few seconds.
"""

from __future__ import annotations

from carvyfl import Certificate, Federation, Recipe, certify
from carvyfl.data.datasets import load
from carvyfl.data.partitions import build_federation
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import form_groups
from carvyfl.learning.job import plan
from carvyfl.learning.models.registry import build_model
from carvyfl.learning.planner import train_groups
from carvyfl.pipeline import gather_models
from carvyfl.profiles.methods import infer_types
from carvyfl.profiles.one_epoch import one_epoch_updates
from carvyfl.profiles.types import ClientTypes
from carvyfl.voting.votes import Votes, predict

SEED = 0


def main() -> tuple[Federation, ClientTypes, Grouping, Votes, Certificate]:
    """Run the steps on 25 clients of 5 types and return what each one found."""
    # Who the clients are, and the model everybody starts from.
    data = load("embedded")
    federation = build_federation(data, "class-disjoint", num_clients=25, samples=60, seed=SEED)
    module = build_model("mlp", data.train.inputs.shape[1:], data.num_classes, SEED)
    recipe = Recipe(rounds=15, lr=0.05)

    # Step 1: every client trains one epoch and sends its update; updates tell the types.
    updates = one_epoch_updates(federation, module, recipe, SEED)
    types = infer_types("bias-profile", updates, seed=SEED)
    print(types)

    # Step 2: groups that hold as many types as possible.
    grouping = form_groups("carvy", num_clients=len(federation), seed=SEED, types=types)
    print(grouping.table(types.labels))

    # Step 3: a job describes all that a group's model depends on; jobs train independently.
    jobs = plan(federation, grouping, module, recipe, SEED)
    results = train_groups(jobs)
    for group, result in enumerate(results):
        print(f"group {group}: {result.rounds} rounds, validation {result.accuracy[-1]:.2f}")
    models = gather_models(federation, module, results)

    # Step 4: every group model votes; the plurality decides.
    votes = models.votes(data.test.inputs)
    print(f"accuracy {(predict(votes) == data.test.labels).mean():.3f}")

    # What the votes guarantee.
    certificate = certify(votes, data.test.labels, grouping.basis)
    for m, percent in enumerate(certificate.ca()):
        print(f"CA({m}) = {percent:.1f} %")
    print(f"AUC = {certificate.auc():.1f}")
    for sentence in certificate.assumptions:
        print(f"- {sentence}")
    return federation, types, grouping, votes, certificate


if __name__ == "__main__":
    main()
