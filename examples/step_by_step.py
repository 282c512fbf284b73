"""The four steps one by one, with the plain functions under ``CarvyFL`` and ``carvy run``.

Every step takes the value of the step before, and each value can be printed,
saved and checked by itself:

Federation → Profiles → Grouping → GroupModels → Votes → Certificate

Run it with ``python examples/step_by_step.py``; it takes a few seconds.
"""

from __future__ import annotations

from carvyfl import Certificate, Federation, Recipe, build_federation, certify, load
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import form_groups
from carvyfl.learning.models import build_model
from carvyfl.pipeline import (
    Compute,
    Setup,
    cast_votes,
    choose_groups,
    find_profiles,
    gather_models,
    plan_training,
    train,
)
from carvyfl.profiles.methods import Profiles
from carvyfl.settings import GroupingSettings
from carvyfl.voting.votes import Votes, predict

SEED = 0


def main() -> tuple[Federation, Profiles, Grouping, Votes, Certificate]:
    """Run the steps on 25 clients of 5 types and return what each one found."""
    # Who the clients are, the model everybody starts from, and how every group trains.
    data = load("embedded")
    federation = build_federation(data, "class-disjoint", num_clients=25, samples=60, seed=SEED)
    module = build_model("mlp", data.train.inputs.shape[1:], data.num_classes, SEED)
    setup = Setup(federation, module, Recipe(rounds=15, lr=0.05), SEED)
    compute = Compute.on_cores()

    # Step 1: every client sends its label shares and a sketch of its class means.
    settings = GroupingSettings()
    profiles = find_profiles(setup, settings, compute)
    print(profiles)

    # Step 2: the number of groups that would certify most, and groups that are all alike.
    count = choose_groups(["carvy"], setup, settings, profiles, compute)
    assert count is not None  # it would be None if the settings held a number
    grouping = form_groups(
        "carvy",
        num_clients=len(federation),
        seed=SEED,
        profiles=profiles,
        num_groups=count.groups,
        found_from="messages",
    )
    print(grouping.table(profiles.types.labels))

    # Step 3: a job describes all that a group's model depends on; jobs train independently.
    jobs = plan_training(setup, grouping)
    results = train({"carvy": jobs}, compute)["carvy"]
    for group, result in enumerate(results):
        print(f"group {group}: {result.rounds} rounds, validation {result.accuracy[-1]:.2f}")
    models = gather_models(setup, results)

    # Step 4: every group model votes; the plurality decides.
    votes = cast_votes(models, data.test.inputs, compute)
    print(f"accuracy {(predict(votes) == data.test.labels).mean():.3f}")

    # What the votes guarantee.
    certificate = certify(votes, data.test.labels, grouping.basis)
    for m, percent in enumerate(certificate.ca()):
        print(f"CA({m}) = {percent:.1f} %")
    print(f"AUC = {certificate.auc():.1f}")
    for sentence in certificate.assumptions:
        print(f"- {sentence}")
    return federation, profiles, grouping, votes, certificate


if __name__ == "__main__":
    main()
