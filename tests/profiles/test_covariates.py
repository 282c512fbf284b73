"""Covariates that the operator knows of the clients."""

from __future__ import annotations

import json

import numpy as np
from typer.testing import CliRunner

from carvyfl import CarvyFL, build_federation, load
from carvyfl.cli.commands import app
from carvyfl.groups.methods import form_groups
from carvyfl.profiles.covariates import covariate_vectors, read_covariates
from carvyfl.profiles.methods import read_profiles


def test_columns_count_alike_whatever_their_units():
    metres = np.array([[1.0, 10.0], [2.0, 30.0], [3.0, 20.0], [6.0, 40.0]])
    millimetres = metres * [1000.0, 1.0] + [5.0, 7.0]
    assert np.allclose(covariate_vectors(metres).rows, covariate_vectors(millimetres).rows)
    assert np.allclose(covariate_vectors(metres).rows.std(axis=0), 1, atol=1e-6)
    constant = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    assert not covariate_vectors(constant).rows[:, 1].any()


def test_text_becomes_a_column_for_each_value(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text("region,age\nnorth,30\nsouth,40.5\nnorth,20\n")
    assert read_covariates(path) == [[1.0, 0.0, 30.0], [0.0, 1.0, 40.5], [1.0, 0.0, 20.0]]


def test_groups_from_known_covariates_are_certified_end_to_end():
    """One client of each of four kinds in every group, and every reading holds."""
    table = np.repeat(np.eye(4), 3, axis=0)
    profiles = read_profiles("covariates", given=table)
    grouping = form_groups("carvy", num_clients=12, seed=1, profiles=profiles, num_groups=3)
    kinds = np.repeat(np.arange(4), 3)
    assert all(sorted(kinds[members]) == [0, 1, 2, 3] for members in grouping.groups)
    assert grouping.basis.readings == ["given_groups", "honest_only", "all_honest"]


def test_the_estimator_takes_a_row_for_each_client():
    data = load("embedded")
    federation = build_federation(data, "iid", num_clients=6, samples=20, seed=0)
    table = np.arange(6.0)[:, None]
    model = CarvyFL(learner="one-shot", features="none", types=table, groups=2).fit(federation)
    assert model.grouping_.basis.all_honest == 1
    sums = [table[members].sum() for members in model.grouping_.groups]
    assert abs(sums[0] - sums[1]) == 1  # 0 + 3 + 4 and 1 + 2 + 5, or as close


def test_the_command_line_takes_a_file(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text("site\n" + "".join(f"{site}\n" for site in "abcabcabc"))
    run = ["groups", "--clients", "9", "--samples", "20", "--groups", "3", "--json"]
    result = CliRunner().invoke(app, [*run, "--covariates-file", str(path)])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    sites = np.array(list("abcabcabc"))
    groups = np.array(answer["groups"])
    assert all(sorted(sites[groups == group]) == ["a", "b", "c"] for group in range(3))
    assert answer["certificate"]["all_honest"] == 1
