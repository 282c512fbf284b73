"""Options that commands share, the configuration they make, and what messages call them."""

from __future__ import annotations

import contextlib
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from carvyfl.cli.variants import load_plugin
from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import bare, descriptions, hints_of
from carvyfl.core.yaml_text import read_yaml
from carvyfl.data.datasets import cache_folder
from carvyfl.groups.coins import Coins, load_coins
from carvyfl.learning.learners import LEARNERS
from carvyfl.learning.recipe import Recipe
from carvyfl.profiles.covariates import read_covariates
from carvyfl.runs.config import load_settings
from carvyfl.settings import DataSettings, LearningSettings, RunSettings, check_privacy_asked

if TYPE_CHECKING:
    from carvyfl.pipeline import Compute

Command = TypeVar("Command", bound=Callable[..., None])
DATA, GROUPS, TRAINING = "Data and clients", "Types and groups", "Training"


def option(text: str, *names: str, default: Any = None, panel: str = "", **more: Any) -> Any:
    """Declare an option by its help text, which the help shows under the panel's title."""
    return typer.Option(default, *names, help=text, rich_help_panel=panel or None, **more)


def _load_plugins(context: typer.Context, paths: list[Path] | None) -> list[Path] | None:
    """Load the files before any name is looked up, in a help text for one."""
    if not context.resilient_parsing:  # which completion does
        for path in paths or ():
            load_plugin(path)
    return paths


RUN = typer.Argument(help="A folder that 'carvy run' wrote.")
RUNS = typer.Argument(help="Folders that 'carvy run' wrote, of one or more seeds.")
DATA_DIR = option("Where to look for registered data sets.")
WORKERS = option("Worker processes; default one per core.", min=1)
ENGINE = option("auto, loop (CPU cores) or batched (GPUs).", default="auto", panel=TRAINING)
PRECISION = option("fp32, tf32 or bf16; default: the engine's own.", panel=TRAINING)
CLUSTER = option(
    "Train on the Ray cluster at this address instead of on this machine.", panel=TRAINING
)
STORE = option("Where trained groups are kept and found again; default: your cache.")
PLUGIN = option(
    "Python file that registers variants of your own; may be repeated.",
    "--plugin",
    metavar="FILE",
    callback=_load_plugins,
    is_eager=True,
)
JSON = option("Print one JSON object for machines.", "--json", default=False)


# --- the settings of a run ----------------------------------------------------------------------


PANELS: dict[type, str] = {DataSettings: DATA, LearningSettings: TRAINING, Recipe: TRAINING}
"""Where the help shows a setting, by the class that declares it; default: with the groups."""

BESIDE = {"given_types", "covariates", "commitment", "training", "data_dir"}
"""Settings that have no flag of their name: they come from files, from other flags or parts."""


def _parameter(name: str, kind: Any, declared: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=declared, annotation=kind | None)


def _setting(kind: type, name: str) -> inspect.Parameter:
    """Return the option of a setting, as its declaration has it."""
    hint, text = bare(hints_of(kind)[name]), descriptions(kind)[name].replace("`", "")
    owner = next(base for base in kind.__mro__ if name in vars(base).get("__annotations__", {}))
    flags, metavar, shown = [f"--{name.replace('_', '-')}"], None, hint
    if name == "groups":
        flags, metavar, shown = ["--groups", "-g"], "G|auto", str
    elif typing.get_origin(hint) is tuple:
        text, shown = f"Comma-separated. {text}", str
    elif typing.get_origin(hint) is dict:
        flags, metavar, shown = ["--partition-option", "-p"], "NAME=VALUE", list[str]
    panel = "" if name == "seed" else PANELS.get(owner, GROUPS)
    return _parameter(name, shown, option(text, *flags, panel=panel, metavar=metavar))


CONFIG = option("YAML file with any settings; flags override it.", "--config", "-c")
PRESET = option(
    "Settings to start from: default, one-shot, private, paper (as published), cao-2021, demo (2 "
    "minutes)."
)
FILES = {
    "types_file": "File with one type per client, in order; implies --types given.",
    "covariates_file": "CSV file with a header and a row per client, in order, of what you know of "
    "them; implies --types covariates.",
    "coins": "File of 'carvy coins' that random slots are drawn from; default: simulated coins.",
}
"""What else settings are read from."""

SETTINGS = {
    each.name: each
    for each in (
        _parameter("config", Path, CONFIG),
        _parameter("preset", str, PRESET),
        *(
            _setting(kind, field.name)
            for kind in (RunSettings, Recipe)
            for field in fields(kind)
            if field.name not in BESIDE
        ),
        *(_parameter(name, Path, option(text, panel=GROUPS)) for name, text in FILES.items()),
    )
}
"""The options of a run's settings, by name."""

OF_TRAINING = {field.name for kind in (LearningSettings, Recipe) for field in fields(kind)}
OF_TRAINING = OF_TRAINING - {"model", "seed", "epsilon"} | {"keep_sums", "methods"}
"""Settings that Steps 1 and 2 do without."""

FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in (*SETTINGS, "commitment", "data_dir", "engine", "labels_column", "out", "precision")
} | {
    "address": "--cluster",
    "covariates": "--covariates-file",
    "given_types": "--types-file",
    "partition_options": "--partition-option",
    "test_data": "--test-data",
}
"""Parameters that the library's messages name, and the flags that set them."""


def in_flags(message: str) -> str:
    """Write --groups for `groups` in a message, and --types given for `types='given'`."""
    return re.sub(
        r"`(\w+)(?:='([\w-]+)')?`",
        lambda match: " ".join(filter(None, [FLAGS.get(match[1], match[1]), match[2]])),
        message,
    )


def with_settings(*, training: bool) -> Callable[[Command], Command]:
    """Give a command the settings of a run, or of Steps 1 and 2, in place of ``**settings``."""

    def declare(command: Command) -> Command:
        *declared, _ = inspect.signature(command, eval_str=True).parameters.values()
        first = [each for each in declared if each.kind is not each.KEYWORD_ONLY]
        left_out = {each.name for each in declared} | (set() if training else OF_TRAINING)
        settings = [setting for name, setting in SETTINGS.items() if name not in left_out]
        shown = [*first, *settings, *declared[len(first) :]]
        command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in shown}
        return command

    return declare


def resolve(settings: Mapping[str, Any]) -> tuple[RunSettings, Coins | None]:
    """Combine preset, file and flags, each overriding the one before; read the coins, if named."""
    from carvyfl.cli.output import warn

    given = {name: value for name, value in settings.items() if value is not None}
    file, preset = given.pop("config", None), given.pop("preset", None)
    coins = load_coins(given.pop("coins")) if "coins" in given else None
    if coins is not None:
        given["commitment"] = coins.commitment
    if (number := given.get("groups")) is not None:
        if number != "auto" and not number.isdecimal():
            raise CarvyError(f"--groups is a whole number or auto, not '{number}'")
        given["groups"] = None if number == "auto" else int(number)
    for name, types, setting, read in (
        ("types_file", "given", "given_types", read_types),
        ("covariates_file", "covariates", "covariates", read_covariates),
    ):
        if name in given:
            given[setting] = read(given.pop(name))
            if given.setdefault("types", types) != types:
                flag = FLAGS[setting]
                raise CarvyError(f"{flag} means --types {types}, not {given['types']}; drop one")
    if "partition_options" in given:
        given["partition_options"] = pairs(given["partition_options"], "--partition-option")
    if "data_dir" in given:
        given["data_dir"] = str(given["data_dir"])
    if given.get("patience") == 0:
        given["patience"] = None
    recipe = [field.name for field in fields(Recipe) if field.name in given]
    flags = {
        name: [flag for flag in (recipe if name == "training" else [name]) if flag in given]
        for learner in LEARNERS.values()
        for name in learner.settings
    }
    given["training"] = {name: given.pop(name) for name in recipe}
    chosen = load_settings(file, preset_name=preset, flags=given)
    used = LEARNERS[chosen.learner].settings if chosen.learner in LEARNERS else tuple(flags)
    if chosen.learner in LEARNERS and not given.keys().isdisjoint({"epsilon", "delta"}):
        check_privacy_asked(chosen.learner, chosen.types)
        used = (*used, "epsilon")
    unused = [FLAGS[flag] for name in flags if name not in used for flag in flags[name]]
    if unused:
        learner = f"the learner '{chosen.learner}'; leave this out"
        warn(f"{', '.join(unused)}: without effect on {learner}")
    return chosen, coins


def compute(
    engine: str,
    precision: str | None,
    workers: int | None,
    store: Path | None,
    cluster: str | None = None,
) -> Compute:
    """Return where and how to compute, and where trained groups are kept."""
    from carvyfl.cli.output import phase
    from carvyfl.learning.backends import make_backend
    from carvyfl.learning.store import GroupStore
    from carvyfl.pipeline import Compute

    backend = make_backend(engine, workers=workers, precision=precision, cluster=cluster)
    return Compute(backend, GroupStore(store or cache_folder() / "groups"), phase)


# --- values -------------------------------------------------------------------------------------


def read_types(path: Path) -> list[int]:
    """Read one type per client, separated by white space or commas."""
    try:
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
    except OSError as error:
        raise CarvyError(f"cannot read the types in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CarvyError(f"{path}: types are read from a text file; this is not one") from error
    for word in words:
        if not re.fullmatch(r"[-+]?\d{1,18}", word):
            raise CarvyError(f"{path}: types must be whole numbers, not '{word[:40]}'")
    return [int(word) for word in words]


LARGEST_RANGE = 10_000
"""No list of numbers on the command line is longer."""


def whole_numbers(
    text: str, flag: str, most: int | None = None, of: str = "", least: int = 0
) -> list[int]:
    """Read whole numbers such as ``0-10`` or ``1,5,9``, of which there are ``most``, ascending."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = high = -1
        with contextlib.suppress(ValueError):
            low, high = int(first), int(last if dash else first)
        if low < least:
            raise CarvyError(f"{flag} takes numbers such as {least}-10 or 1,5,9, not '{text}'")
        if most is not None and max(low, high) > most:
            raise CarvyError(f"{flag} {text}: there are only {most} {of}")
        if high - low >= LARGEST_RANGE:
            raise CarvyError(f"{flag} {text}: that is more than {LARGEST_RANGE:,} numbers")
        numbers.update(range(low, high + 1))
    if not numbers:
        raise CarvyError(f"{flag} {text} names no number; give some such as 0-10")
    return sorted(numbers)


def pairs(texts: Iterable[str], flag: str) -> dict[str, Any]:
    """Read texts NAME=VALUE, the values as YAML has them."""
    values = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise CarvyError(f"{flag} takes NAME=VALUE, such as alpha=0.3, not '{text}'")
        values[name.strip().replace("-", "_")] = read_yaml(value, f"{flag} {name}")
    return values
