"""The library's parameters in the words of the command line."""

from __future__ import annotations

import re

FLAGS = {
    "address": "--cluster",
    "aggregation": "--aggregation",
    "algorithm": "--algorithm",
    "aim": "--aim",
    "coins": "--coins",
    "commitment": "--commitment",
    "data_dir": "--data-dir",
    "engine": "--engine",
    "features": "--features",
    "given_types": "--types-file",
    "covariates": "--covariates-file",
    "epsilon": "--epsilon",
    "keep_sums": "--keep-sums",
    "key": "--key",
    "learner": "--learner",
    "mean": "--mean",
    "num_classes": "--num-classes",
    "num_groups": "--groups",
    "out": "--out",
    "partition": "--partition",
    "precision": "--precision",
    "projection": "--projection",
    "std": "--std",
    "test_data": "--test-data",
    "types": "--types",
}
"""Parameters that the library's messages name, and the flags that set them."""


def in_flags(message: str) -> str:
    """Return a message with flags in place of parameters.

    A message names a parameter in backquotes, with or without a value: `num_groups` becomes
    --groups, and `types='given'` becomes --types given.
    """

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        return " ".join(filter(None, [FLAGS.get(name, name), value]))

    return re.sub(r"`(\w+)(?:='([\w-]+)')?`", flag, message)
