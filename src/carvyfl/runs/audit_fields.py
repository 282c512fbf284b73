"""How an audit checks every field of a record."""

from __future__ import annotations

from typing import Literal

How = Literal["derived", "validated", "as recorded"]
"""Derived: computed again and compared. Validated: an impossible value is refused. As recorded: no
audit can tell; a signature says who claims it."""

FIELDS: dict[str, tuple[How, str]] = {
    "format": ("derived", "the format that this version reads"),
    "config.dataset": ("derived", "the data set of that name, or the name of the test data"),
    "config.data_dir": ("as recorded", "a folder on the machine of the run"),
    "config.num_classes": ("derived", "the data set"),
    "config.mean": ("derived", "the data set"),
    "config.std": ("derived", "the data set"),
    "config.partition": ("validated", "the clients' true types follow from it"),
    "config.partition_options": ("validated", "the clients' true types follow from them"),
    "config.clients": ("derived", "the number of clients in the groups"),
    "config.samples": ("validated", "in a real federation: the median of the clients' samples"),
    "config.validation": ("validated", "without any there are no validation accuracies"),
    "config.validation_share": ("validated", "at least 0 and below 1"),
    "config.model": ("derived", "the shapes of the group models"),
    "config.learner": ("derived", "the shapes of the group models"),
    "config.features": ("validated", "the shapes of one-shot models, and their votes"),
    "config.projection": ("validated", "the shapes of one-shot models, and their votes"),
    "config.ridge": ("validated", "the models, derived again where sums were kept"),
    "config.keep_sums": ("derived", "whether sums are among the files"),
    "config.methods": ("derived", "the methods of the record"),
    "config.types": ("derived", "the method in types.json"),
    "config.given_types": ("derived", "the types in types.json"),
    "config.groups": ("derived", "the groups, formed again"),
    "config.group_rule": ("validated", "the groups, formed again, where G was found"),
    "config.literal": ("validated", "the groups, formed again, where G was found"),
    "config.baseline_groups": ("derived", "the groups of baselines, formed again"),
    "config.commitment": ("derived", "the coins that the groups were drawn from"),
    "config.training": ("validated", "rounds and patience fit the rounds made; the rest: training"),
    "config.seed": ("derived", "the coins of a simulation, and the groups"),
    "data.name": ("derived", "the data set; in a real federation as recorded"),
    "data.input_shape": ("derived", "the test data; the shapes of the models fit it"),
    "data.input_type": ("derived", "the test data"),
    "data.num_classes": ("derived", "the data set, or the settings of a real federation"),
    "data.class_names": ("derived", "the data set; in a real federation their number only"),
    "data.mean": ("derived", "the data set, or the settings of a real federation"),
    "data.std": ("derived", "the data set, or the settings of a real federation"),
    "data.test_inputs": ("derived", "the test data, and the votes"),
    "data.test_sha256": ("derived", "the test data"),
    "data.train_sha256": ("derived", "the training set of the data set"),
    "types.method": ("derived", "types.json, and the configuration"),
    "types.num_types": ("derived", "types.json"),
    "types.sizes": ("derived", "types.json"),
    "types.names": ("derived", "types.json"),
    "types.warnings": ("derived", "types.json"),
    "types.set_aside": ("derived", "types.json"),
    "types.true_types": ("derived", "the partition of a simulation, split again"),
    "methods.*.num_groups": ("derived", "the groups, the models and the votes"),
    "methods.*.ca": ("derived", "the votes"),
    "methods.*.ca_low": ("derived", "the votes"),
    "methods.*.ca_high": ("derived", "the votes"),
    "methods.*.auc": ("derived", "the votes"),
    "methods.*.per_class_ca": ("derived", "the votes"),
    "methods.*.certificate": ("derived", "how the groups were formed"),
    "methods.*.readings": ("derived", "the votes, and how the groups were formed"),
    "methods.*.rounds": ("validated", "the length of the history, and the recipe"),
    "methods.*.stopped": ("validated", "the rounds made, the members left and the model's weights"),
    "methods.*.validation_accuracy": ("validated", "0 to 1, one for each round made"),
    "methods.*.benched": ("derived", "the groups"),
    "methods.*.set_aside": ("validated", "members of groups; an empty group has no others"),
    "deployment.settings": ("derived", "config.yaml"),
    "deployment.authenticated": ("derived", "the settings: whether keys were registered"),
    "deployment.identity": ("derived", "the settings: whether keys were registered"),
    "deployment.clients": ("validated", "their order; groups by hash follow from their names"),
    "deployment.samples": ("validated", "one number for each client; the clients' own word"),
    "deployment.traffic": ("validated", "no bytes without messages; the server's own word"),
    "seconds": ("validated", "0 or more; the word of whoever ran it"),
    "environment.commit": ("as recorded", "the word of whoever ran it"),
    "environment.carvyfl": ("as recorded", "the word of whoever ran it"),
    "environment.python": ("as recorded", "the word of whoever ran it"),
    "environment.torch": ("as recorded", "the word of whoever ran it"),
    "environment.numpy": ("as recorded", "the word of whoever ran it"),
    "environment.processor": ("as recorded", "the word of whoever ran it"),
    "environment.cores": ("validated", "1 or more; the word of whoever ran it"),
    "environment.gpu": ("as recorded", "the word of whoever ran it"),
    "environment.engine": ("validated", "a known engine; Flower's in a real federation only"),
    "environment.precision": ("validated", "a known precision"),
    "environment.flower": ("validated", "there in a real federation only"),
    "files": ("derived", "the files"),
    "digest": ("derived", "the record"),
}
"""Every field of the record: how it is checked, and against what."""


def table() -> str:
    """Return the fields as a Markdown table."""
    rows = [f"| `{name}` | {how} | {what} |" for name, (how, what) in FIELDS.items()]
    return "\n".join(["| field | | against what |", "|---|---|---|", *rows]) + "\n"
