"""The run folder: everything a run found, in files that explain themselves.

========================  =====================================================
``config.yaml``           the resolved configuration; ``carvy run --config`` takes it
``run.json``              the record, with the SHA-256 of every other file: written last, so a
                          folder with it is complete
``run.json.sig``          its signature, where ``ssh-keygen -Y sign`` made one
``types.json``            Step 1, where a method needed it: the clients' types
``profiles.npz``          and what anticlustering compared, where that is more than types
``messages.safetensors``  what every client sent, where that is private, and ``map.safetensors``,
                          by which it was made
``sums.safetensors``      what every client sent, where one-shot learning was to keep it
``groups/METHOD.json``    Step 2
``models/METHOD.safetensors``  Step 3
``votes/METHOD.npz``      Step 4, with the test labels; ``carvy certify`` takes it
``ca.png``                certified accuracy of every method
``group-count.png``       the curve that G was chosen from, where it was
``attacks.json``          what attacks achieved, once ``carvy attack`` was run
========================  =====================================================
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET

from carvyfl.core.archives import safetensors_shapes
from carvyfl.core.arrays import data_frame
from carvyfl.core.errors import CarvyError, printable
from carvyfl.core.files import wait_for_lock, write_text
from carvyfl.core.registry import UnknownVariantError, pick
from carvyfl.core.schema import read
from carvyfl.groups.basis import READINGS
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.learners import LEARNERS
from carvyfl.profiles.methods import PROFILE_METHODS, Profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.profiles.vectors import load_vectors
from carvyfl.runs.config import RunConfig, without_former
from carvyfl.runs.record import FORMAT, AttackResult, Attacks, RunRecord, sealed, sha256, unsealed
from carvyfl.voting.certificate import Certificate, certify
from carvyfl.voting.files import Loaded, load_votes

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

    from carvyfl.learning.job import GroupResult
    from carvyfl.learning.one_shot.features import Features
    from carvyfl.learning.one_shot.sums import SumsFile
    from carvyfl.learning.private.message import Messages
    from carvyfl.voting.group_models import GroupModels

T = TypeVar("T")
FORMER_METHODS = ("wrap", "seats")
"""Groupings of earlier versions; no part of the package knows them any more."""
_SEED = re.compile(r"seed-(\d+)")


class _File:
    """A file of a run folder, by its name there; see the table above."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, owner: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """A run folder, finished or not; the files are read when asked for."""

    path: Path

    config_file = _File("config.yaml")
    record_file = _File("run.json")
    signature_file = _File("run.json.sig")
    types_file = _File("types.json")
    profiles_file = _File("profiles.npz")
    sums_file = _File("sums.safetensors")
    messages_file = _File("messages.safetensors")
    picture = _File("ca.png")
    choice_picture = _File("group-count.png")
    attacks_file = _File("attacks.json")

    def grouping_file(self, method: str) -> Path:
        """Return where the groups of a method are."""
        return self.path / "groups" / f"{method}.json"

    def models_file(self, method: str) -> Path:
        """Return where the group models of a method are."""
        return self.path / "models" / f"{method}.safetensors"

    def votes_file(self, method: str) -> Path:
        """Return where the votes of a method on the test set are."""
        return self.path / "votes" / f"{method}.npz"

    def files(self, record: RunRecord) -> list[Path]:
        """Return every file of a finished run but the record, its signature and attacks."""
        learner = LEARNERS.get(record.config.learner)
        typed, profiles = record.types is not None, PROFILE_METHODS.get(record.config.types)
        written = {
            self.config_file: True,
            self.types_file: typed,
            self.picture: True,
            self.profiles_file: typed and profiles is not None and bool(profiles.read_vectors),
            self.choice_picture: record.group_count is not UNSET,
            self.sums_file: record.config.keep_sums,
            self.messages_file: learner is not None and learner.sends == "message",
        }
        files = () if learner is None else learner.files
        written |= {self.path / name: True for name in files}
        each = (self.grouping_file, self.models_file, self.votes_file)
        return [file for file in written if written[file]] + [
            place(method) for method in record.methods for place in each
        ]

    @property
    def seeds(self) -> list[Path]:
        """The run folders in a folder of runs over seeds, by ascending seed; none in another."""
        if self.config_file.is_file() or not self.path.is_dir():
            return []
        named = ((_SEED.fullmatch(path.name), path) for path in self.path.iterdir())
        by_seed = {int(match[1]): path for match, path in named if match and path.is_dir()}
        return [by_seed[seed] for seed in sorted(by_seed)]

    def record(self) -> RunRecord:
        """Read the record of a finished run."""
        if not self.record_file.is_file():
            raise CarvyError(self._why_no_record())
        content = read_json(self.record_file)
        number = content.get("format", FORMAT) if isinstance(content, dict) else FORMAT
        if number != FORMAT:
            if not isinstance(number, int) or number > FORMAT:
                remedy = "use the version of carvyfl that wrote it"
            elif "deployment" in content:
                remedy = "a federation cannot be repeated: read it with the version that wrote it"
            else:
                remedy = (
                    f"get the run again with 'carvy run --config {self.config_file} --out NEW': "
                    "groups that are formed as before are found in the store, or trained to the "
                    "same bits"
                )
            raise CarvyError(
                f"{self.record_file} has format {printable(str(number), 20)}, this version reads "
                f"{FORMAT}; {remedy}"
            )
        try:
            unsealed(self.record_file.read_bytes().decode())
            record = read(RunRecord, content, "the record")
        except CarvyError as error:
            raise CarvyError(f"{self.record_file} is damaged: {error}; {_RESTORE}") from None
        for method in FORMER_METHODS:
            if method in record.methods and method not in GROUPINGS:
                raise CarvyError(
                    f"{self.record_file} is of a run with the grouping '{method}', which is gone; "
                    "read it with the version that wrote it"
                )
        without_former(content["config"], str(self.record_file))  # which may refuse them
        return record

    def _why_no_record(self) -> str:
        if not self.path.exists():
            return f"{self.path} does not exist; name a folder that 'carvy run --out' wrote"
        if seeds := self.seeds:
            return f"{self.path} holds runs of several seeds; name one of them, such as {seeds[0]}"
        if not self.config_file.is_file():
            return f"{self.path} is no run folder; name one that 'carvy run --out' wrote"
        return f"the run in {self.path} is not finished; run the same command again to finish it"

    def config(self) -> RunConfig:
        """Return the configuration of a finished run."""
        record = self.record()
        if record.deployment is not UNSET:
            raise CarvyError(
                f"{self.path} holds a real federation, whose clients brought their own data: "
                "there is no configuration to run it from; its settings are in config.yaml"
            )
        with self._variants():
            return RunConfig(**vars(record.config))

    @contextlib.contextmanager
    def _variants(self) -> Iterator[None]:
        """Say how to get a variant of the run that is not registered here."""
        try:
            yield
        except UnknownVariantError as error:
            what = str(error).partition(";")[0]
            raise CarvyError(
                f"{self.path}: {what}, which the run used; load the file that registers it with "
                "--plugin, or install its package"
            ) from error

    def _module(self, record: RunRecord) -> nn.Module:
        with self._variants():
            learner, data = LEARNERS.pick(record.config.learner), record.data
            return learner.load(record.config, data.input_shape, data.num_classes, self.path)

    def _features(self, record: RunRecord) -> Features:
        from carvyfl.learning.one_shot.features import features_for

        with self._variants():
            config = record.config
            return features_for(config.features, record.data.input_shape, config.projection)

    def _check_sizes(self, record: RunRecord, method: str) -> None:
        """Compare the stored models with the record before memory is taken for what it claims."""
        import torch

        classes, groups = record.data.num_classes, record.methods[method].num_groups
        with self._variants():
            config, shape = record.config, record.data.input_shape
            width = LEARNERS.pick(config.learner).head_width(config, shape, self.path)
        shapes: dict[str, tuple[int, ...]]
        if width is not None:
            shapes = {"head.weight": (classes, width), "head.bias": (classes,)}
        else:
            try:
                with torch.device("meta"):  # shapes without numbers
                    module = self._module(record)
            except (RuntimeError, TypeError, ValueError):  # somebody's model may need the numbers
                return
            shapes = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
        expected = {name: (groups, *shape) for name, shape in shapes.items()}
        if safetensors_shapes(self.models_file(method)) != expected:
            raise CarvyError(
                f"{self.models_file(method)} does not hold {groups} models for the recorded data"
            )

    def method(self, name: str | None) -> str:
        """Return the method of that name, or the first one of the run."""
        methods = self.record().methods
        if name is not None:
            pick(methods, name, f"method in {self.path}")
        return name or next(iter(methods))

    def _read(self, file: Path, read: Callable[[Path], T]) -> T:
        """Read a file of the finished run that is as recorded, or say how to get it back."""
        try:
            if sha256(file) != self.record().files.get(file.relative_to(self.path).as_posix()):
                raise CarvyError(
                    f"{file} was changed after the run was finished: its SHA-256 is not as recorded"
                )
            return read(file)
        except CarvyError as error:
            raise CarvyError(f"{error}; {_RESTORE}") from error

    def grouping(self, method: str) -> Grouping:
        """Read the groups of a method."""
        return self._read(self.grouping_file(method), Grouping.load)

    def types(self) -> ClientTypes | None:
        """Read the types of Step 1, None if no method needed any."""
        if self.record().types is None:
            return None
        return self._read(self.types_file, lambda file: ClientTypes.from_json(read_json(file)))

    def profiles(self) -> Profiles | None:
        """Read what Step 1 found, None if no method needed it."""
        types = self.types()
        if types is None:
            return None
        method = PROFILE_METHODS.get(types.method)
        if method is None or method.read_vectors is None:
            return Profiles(types)
        read_vectors = functools.partial(load_vectors, num_clients=len(types))
        return Profiles(types, self._read(self.profiles_file, read_vectors))

    def votes(self, method: str) -> Loaded:
        """Read the votes of a method on the test set, and the test labels."""
        return self._read(self.votes_file(method), load_votes)

    def certificate(self, method: str) -> Certificate:
        """Compute a method's certificate anew, from its votes and its grouping."""
        (votes, labels), grouping = self.votes(method), self.grouping(method)
        if votes.num_groups != grouping.num_groups:
            raise CarvyError(
                f"{self.votes_file(method)} holds the votes of {votes.num_groups} groups, but "
                f"{grouping.num_groups} were formed"
            )
        certificate = certify(votes, labels, grouping.basis)
        return replace(certificate, budget=self.record().budget)

    def models(self, method: str) -> GroupModels:
        """Read the group models of a method."""
        from carvyfl.voting.group_models import GroupModels

        record = self.record()
        about = {name: getattr(record.data, name) for name in ("num_classes", "mean", "std")}

        def load(file: Path) -> GroupModels:
            self._check_sizes(record, method)
            return GroupModels.load(file, self._module(record), **about)

        return self._read(self.models_file(method), load)

    def sums(self) -> SumsFile:
        """Return the clients' sums, to be read one by one; only if the run was to keep them."""
        record = self.record()
        if not (record.config.learner == "one-shot" and record.config.keep_sums):
            raise CarvyError(
                f"the run in {self.path} kept no sums; run it with `learner='one-shot'` and "
                "`keep_sums`"
            )
        sums = self.sums_file_of(record)
        self._read(self.sums_file, lambda _: sums.check())
        return sums

    def sums_file_of(self, record: RunRecord) -> SumsFile:
        """Return the file of the sums of a run with this record, which is not read."""
        from carvyfl.learning.one_shot.sums import SumsFile

        width = self._features(record).width
        return SumsFile(self.sums_file, record.config.clients, record.data.num_classes, width)

    def module(self) -> nn.Module:
        """Return the model of a run, without any group's weights."""
        return self._module(self.record())

    def messages(self) -> Messages:
        """Return what the clients sent, in a run with the learner ``private``."""
        record = self.record()
        learner, module = LEARNERS.pick(record.config.learner), self._module(record)
        if learner.sends != "message":
            raise CarvyError(f"the run in {self.path} has no private messages")

        def load(file: Path) -> Messages:
            return learner.read_messages(module, file, record.config.clients)

        return self._read(self.messages_file, load)

    def results(self, method: str) -> list[GroupResult]:
        """Return the trained groups of a method, in the order of the groups."""
        from carvyfl.learning.job import GroupResult

        entry, models = self.record().methods[method], self.models(method)
        reasons = {int(client): why for client, why in entry.set_aside.items()}
        return [
            GroupResult(
                models.weights[g],
                tuple(math.nan if a is None else a for a in entry.validation_accuracy[g]),
                entry.stopped[g],
                {client: reasons[client] for client in members.tolist() if client in reasons},
            )
            for g, members in enumerate(self.grouping(method).groups)
        ]

    def to_frame(self) -> DataFrame:
        """Return CA(m) in percent as a data frame: columns seed, method, reading, m and ca."""
        record = self.record()
        rows = [
            (record.config.seed, method, reading, m, ca)
            for method, entry in record.methods.items()
            for reading in READINGS
            if (read_against := getattr(entry.readings, reading)) is not None
            for m, ca in enumerate(read_against.ca)
        ]
        return data_frame(rows, ["seed", "method", "reading", "m", "ca"])

    def attacks(self) -> list[AttackResult]:
        """Read what attacks on this run achieved; refuse results changed, or of another run."""
        file = self.attacks_file
        if not file.exists():
            return []
        try:
            recorded = read(Attacks, unsealed(file.read_bytes().decode()), "the file")
        except (OSError, UnicodeDecodeError, CarvyError) as error:
            raise CarvyError(f"{file} is damaged; remove it and attack again") from error
        if recorded.run != self.record().digest:
            raise CarvyError(f"{file} is of another run; remove it and attack this one")
        return list(recorded.attacks)

    def add_attacks(self, results: Iterable[AttackResult]) -> None:
        """Keep results, in the place of earlier ones of the same attack, placement and method."""
        with wait_for_lock(self.config_file):
            merged = {result.key: result for result in [*self.attacks(), *results]}
            attacks = Attacks(self.record().digest, tuple(merged.values()))
            write_text(self.attacks_file, sealed(attacks))


_RESTORE = "run the same 'carvy run' again to restore it"


def read_json(path: Path) -> Any:
    """Read a JSON file, or say in one line why not."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CarvyError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CarvyError(f"{path} is damaged: not valid JSON; {_RESTORE}") from error


def seed_folder(out: Path, seed: int) -> Path:
    """Return the run folder of one seed."""
    return out / f"seed-{seed}"


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """Replace every folder of runs over seeds by the run folders in it, by ascending seed."""
    folders: list[Path] = []
    for path in paths:
        folders += RunFolder(path).seeds or [path]
    if len(set(folders)) < len(folders):
        twice = next(path for path in folders if folders.count(path) > 1)
        raise CarvyError(f"{twice} is named twice; name every run once")
    return folders
