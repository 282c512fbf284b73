"""The configuration: presets, YAML files, flags, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.learning.recipe import Recipe
from carvyfl.runs.config import PRESETS, RunConfig, load_config, preset


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("dataset", "rounds"), [(None, 200), ("mnist", 200), ("fashion-mnist", 300), ("embedded", 300)]
)
def test_the_paper_preset_is_section_4_1(dataset, rounds):
    config = preset("paper", dataset)
    assert config.dataset == (dataset or "mnist")
    assert config.partition == "class-disjoint"
    assert config.clients == 100
    assert config.types == "xmeans"
    assert config.model == "compact-cnn"
    assert config.methods == ("carvy", "flcert", "cluster", "single")
    assert config.groups is None
    assert config.baseline_groups == 20
    training = config.training
    assert (training.algorithm, training.rounds, training.batch_size) == ("scaffold", rounds, 16)
    assert (training.lr, training.lr_min) == (0.01, 0.0001)
    assert (training.patience, training.min_improvement) == (10, 1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_being_saved(tmp_path, name):
    assert load_config(written(tmp_path, preset(name).to_yaml())) == preset(name)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    clients = draw(st.integers(1, 50))
    types = draw(st.sampled_from(["bias-profile", "xmeans", "oracle", "given"]))
    one_type = st.integers(-3, 3)
    given_types = tuple(draw(st.lists(one_type, min_size=clients, max_size=clients)))
    groups = st.none() | st.integers(1, clients)
    lr = draw(st.floats(1e-6, 10))
    return RunConfig(
        dataset=draw(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1)),
        data_dir=draw(st.none() | st.just("~/data: #1")),
        partition="dirichlet",
        partition_options=draw(st.sampled_from([{}, {"alpha": 0.3}, {"alpha": 1}])),
        clients=clients,
        samples=draw(st.integers(1, 10**9)),
        validation=draw(st.integers(1, 100)),
        model=draw(st.sampled_from(["mlp", "compact-cnn"])),
        methods=draw(st.permutations(["carvy", "flcert", "single"]).map(tuple)),
        types=types,
        given_types=given_types if types == "given" else None,
        groups=draw(groups),
        baseline_groups=draw(groups),
        training=Recipe(
            lr=lr, lr_min=lr * draw(st.floats(1e-9, 1)), rounds=draw(st.integers(1, 10**9))
        ),
        seed=draw(st.integers()),
    )


@given(config=configs())
def test_a_saved_configuration_can_be_fed_back(
    tmp_path_factory: pytest.TempPathFactory, config: RunConfig
) -> None:
    folder = tmp_path_factory.mktemp("config")
    assert load_config(written(folder, config.to_yaml())) == config


def test_flags_override_the_file_and_the_file_the_preset(tmp_path):
    path = written(tmp_path, "preset: paper\nclients: 30\nseed: 4\ntraining: {rounds: 7, lr: 1e-2}")
    config = load_config(path, flags={"seed": 9, "training": {"rounds": 3}})
    assert (config.clients, config.seed, config.types) == (30, 9, "xmeans")
    assert (config.training.rounds, config.training.lr, config.training.patience) == (3, 0.01, 10)
    assert load_config(path, preset_name="demo").types == "class-means"
    assert load_config(None) == RunConfig()
    assert load_config(written(tmp_path, "")) == RunConfig()


def test_the_paper_preset_follows_the_data_set_wherever_it_is_named(tmp_path):
    on_mnist = written(tmp_path, "preset: paper")
    assert load_config(on_mnist).training.rounds == 200
    assert load_config(on_mnist, flags={"dataset": "fashion-mnist"}).training.rounds == 300
    in_file = written(tmp_path, "dataset: fashion-mnist")
    assert load_config(in_file, preset_name="paper").training.rounds == 300
    both = written(tmp_path, "preset: paper\ndataset: fashion-mnist\ntraining: {rounds: 5}")
    assert load_config(both).training.rounds == 5


def test_a_setting_brings_along_what_it_implies(tmp_path):
    paper = written(tmp_path, preset("paper").to_yaml())
    with_groups = load_config(paper, flags={"groups": 10})
    assert (with_groups.groups, with_groups.baseline_groups) == (10, None)
    listed = written(tmp_path, "clients: 3\ngiven_types: [0, 1, 1]")
    assert load_config(listed).types == "given"
    assert load_config(listed, flags={"types": "oracle"}).given_types is None
    skewed = written(tmp_path, "partition: dirichlet\npartition_options: {alpha: 1e-1}")
    assert load_config(skewed).partition_options == {"alpha": 0.1}
    assert load_config(skewed, flags={"partition": "iid"}).partition_options == {}
    assert load_config(skewed, flags={"partition": "dirichlet"}).partition_options == {"alpha": 0.1}


BAD_SETTINGS = {
    "clientz: 3": ["clientz", "did you mean 'clients'"],
    "training: {patiance: 3}": ["patiance", "did you mean 'patience'"],
    "rounds: 3": ["'rounds' belongs under 'training'"],
    "3: 4": ["'3'"],
    "preset: papr": ["papr", "did you mean 'paper'"],
    "preset: [paper]": ["preset"],
    "partition: dirichlt": ["did you mean 'dirichlet'"],
    "model: mlpp": ["did you mean 'mlp'"],
    "types: xmean": ["did you mean 'xmeans'"],
    "methods: [carvi]": ["did you mean 'carvy'"],
    "methods: carvi": ["did you mean 'carvy'"],
    "methods: []": ["at least one"],
    "methods: [carvy, carvy]": ["twice"],
    "methods: 3": ["methods must be a list"],
    "group_rule: mean": ["group_rule", "'mean', which is gone"],
    "training: {algorithm: fedavgg}": ["did you mean 'fedavg'"],
    "training: {rounds: many}": ["rounds must be a whole number", "'many'"],
    "training: {rounds: 2.5}": ["rounds must be a whole number"],
    "training: {rounds: 0}": ["at least 1"],
    "training: {batch_size: -1}": ["at least 1"],
    "training: {lr: quick}": ["lr must be a number"],
    "training: {lr: -0.1}": ["learning rates", "-0.1"],
    "training: {lr: .nan}": ["lr must be a finite number", "nan"],
    "training: {lr: .inf}": ["lr must be a finite number", "inf"],
    "training: {lr: 0.00001}": ["lr_min is 0.0001"],
    "training: {patience: -3}": ["patience", "-3"],
    "training: {min_improvement: -1}": ["min_improvement", "-1"],
    "training: 5": ["training must be a mapping"],
    "training: [1]": ["training must be a mapping"],
    "clients: yes": ["clients must be a whole number", "True"],
    "clients: -3": ["clients must be at least 1", "-3"],
    "samples: 0": ["samples must be at least 1"],
    "validation: -1": ["validation", "-1"],
    "validation: 0\ntraining: {patience: 3}": ["validation"],
    "groups: 0": ["groups must be at least 1"],
    "groups: 101": ["101 groups of 100 clients"],
    "baseline_groups: 101": ["101 groups of 100 clients", "baseline_groups"],
    "literal: true": ["literal", "True, which is gone"],
    "keep_sums: maybe": ["true or false"],
    "types: given": ["given_types"],
    "types: oracle\ngiven_types: [1]\nclients: 1": ["'given'"],
    "given_types: [0, 1]": ["2 types were given for 100 clients"],
    "given_types: [a]": ["given_types must be a whole number"],
    "given_types: 3": ["given_types must be a list"],
    "partition_options: {alpha: 1}": ["'class-disjoint' has no parameter 'alpha'"],
    "partition_options: {seed: 1}": ["no parameter 'seed'"],
    "partition_options: {validation_share: 0.5}": ["no parameter 'validation_share'"],
    "partition_options: {1: 1}": ["no parameter '1'"],
    "partition_options: 3": ["partition_options must be a mapping"],
    "partition: iid\npartition_options: {alpha: 1}": ["it takes none"],
    "dataset: [1]": ["dataset must be a text"],
    "preset: paper\ndataset: [1]": ["dataset must be a text"],
    "seed: 1.5": ["seed must be a whole number"],
    f"seed: {10**2000}": ["seed must be a whole number of at most 38 digits, not 1000"],
    f"seed: 0x{'f' * 2000}": ["seed must be a whole number of at most 38 digits"],
    f"groups: {10**12}": ["1000000000000 groups of 100 clients"],
    f"training: {{rounds: {10**18}}}": ["rounds must be", "at most 1,000,000,000"],
    f"clients: &c {10**300}\ngiven_types: [*c]": ["1 types were given"],
    "clients: &c [*c]": ["not valid YAML", "aliases"],
    "clients: " + "[" * 3000: ["not valid YAML", "nested"],
    "- a": ["mapping of settings"],
    "just words": ["mapping of settings"],
    "a: [b": ["not valid YAML", "line 1"],
    "clients: 3\n  samples: 4": ["not valid YAML", "line 2"],
    "clients: 2024-99-99": ["not valid YAML"],
    "clients: !!python/object:os.system {}": ["not valid YAML"],
}


@pytest.mark.parametrize("text", BAD_SETTINGS)
def test_bad_settings_are_named_in_one_line(tmp_path, text):
    with pytest.raises(CarvyError) as caught:
        load_config(written(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message
    for word in BAD_SETTINGS[text]:
        assert word in message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(CarvyError, match="No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(CarvyError, match="Is a directory"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CarvyError, match="not valid YAML"):
        load_config(tmp_path / "binary.yaml")


def test_a_baseline_number_of_groups_nobody_uses_is_no_obstacle(tmp_path):
    text = "preset: paper\nclients: 10\nmethods: [carvy, single]"
    assert load_config(written(tmp_path, text)).baseline_groups == 20


def test_the_yaml_is_plain():
    config = RunConfig(clients=2, types="given", given_types=(0, 1))
    assert "!" not in config.to_yaml()  # no tags: any YAML reader understands it
    plain = yaml.safe_load(config.to_yaml())
    assert plain["methods"] == ["carvy", "flcert"]
    assert plain["given_types"] == [0, 1]
