"""One-shot learning over the network: a group asks its members for their sums, once.

Nothing here knows another group. What a member sent lies on disk until the group's head is made: a
server holds the sums of few clients, and started again asks only those that it has not heard.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.flower.identity import ServerContext
from carvyfl.flower.questions import log
from carvyfl.flower.rounds import PAUSE
from carvyfl.flower.wire import SUMS, SumsOrder, read_sums, sums_lengths, write
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.learning.models import flat_weights
from carvyfl.learning.one_shot.sums import Sums, from_triangle, triangle
from carvyfl.learning.one_shot.training import OneShotModel, as_one_shot, head_from
from carvyfl.learning.store import read_entry, trusting, write_entry

OTHER_COUNTS = "its sums count other samples than it said in Step 1, where its type comes from"

_one_head = threading.Lock()  # a head needs several matrices of d × d numbers; groups are many


@dataclass(frozen=True)
class ReceivedSums:
    """The sums that members of one group have sent, a file each, until its head is made."""

    folder: Path
    key: str

    def put(self, number: int, sums: Sums) -> None:
        """Keep what a member sent; afterwards it survives whatever happens to this process."""
        arrays = {"second": triangle(sums.second), "first": sums.first, "counts": sums.counts}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        write_entry(self.file(number), tensors, {})

    def get(self, number: int) -> Sums | None:
        """Return what a member sent; None if there is nothing that can be trusted."""
        path = self.file(number)
        with trusting(path, "asked for again"):
            if (entry := read_entry(path)) is None:
                return None
            second, first, counts = (entry[0][n].numpy() for n in ("second", "first", "counts"))
            return Sums(from_triangle(second, first.shape[1]), first, counts)
        return None

    def in_order(self, numbers: Sequence[int]) -> Iterator[tuple[int, Sums]]:
        """Yield what members sent, one after another."""
        for number in numbers:
            if (sums := self.get(number)) is None:
                raise CarvyError(
                    f"{self.file(number)} was damaged after it was written; start the server "
                    "again: it asks that client once more"
                )
            yield number, sums

    def file(self, number: int) -> Path:
        """Return where the sums of a member are."""
        return self.folder / f"{self.key}-{number}.safetensors"


def learn_group_remotely(
    context: ServerContext, group: int, job: GroupJob, expected: Tensor
) -> tuple[GroupResult, Counter[str]]:
    """Ask the members of a group for their sums, and return its head and the traffic.

    A member is asked until its time is over. One that does not answer, or sends what cannot be
    used, is set aside; the head is that of the others. ``job`` holds no data; ``expected`` is the
    :func:`~carvyfl.learning.one_shot.features.probe` of the server's features.
    """
    module = as_one_shot(job.module)
    key, traffic = job.key(), Counter[str]()
    if (done := context.store.get(key, job)) is not None:
        return done, traffic
    received = ReceivedSums(context.store.folder / "sums", key)
    heard = {number for number in job.members if received.get(number) is not None}
    set_aside: dict[int, str] = {}
    clock, lost_seconds, late = context.clock, context.settings.lost_seconds, False
    began = clock.monotonic()
    while missing := [n for n in job.members if n not in heard and n not in set_aside]:
        now = clock.monotonic()
        late = now >= context.until
        if late or now - began >= lost_seconds:
            break
        for number, answer in _collect(context, missing, module, expected, traffic):
            if isinstance(answer, str):
                set_aside[number] = answer
            else:
                received.put(number, answer)
                heard.add(number)
        if not any(number in heard or number in set_aside for number in missing):
            clock.sleep(max(0.0, PAUSE - (clock.monotonic() - now)))
    silence = "before the deadline" if late else f"for {lost_seconds:g} seconds"
    set_aside |= dict.fromkeys(missing, f"no answer {silence}")
    for number, why in set_aside.items():
        log.warning("carvy: client %s set aside: %s", number, why)
    used = [number for number in job.members if number in heard]
    if late and not used:
        result = GroupResult(flat_weights(module), (), "untrained")
    else:
        with _one_head:
            result = head_from(module, received.in_order(used))
        if late and result.votes:
            result = replace(result, stopped="deadline")
    result = replace(result, set_aside=dict(sorted((set_aside | result.set_aside).items())))
    log.info("carvy: group %s has its head, of %s clients", group, len(used))
    context.store.put(key, result)
    for number in job.members:
        received.file(number).unlink(missing_ok=True)
    return result, traffic


def _collect(
    context: ServerContext,
    members: Sequence[int],
    module: OneShotModel,
    expected: Tensor,
    traffic: Counter[str],
) -> Iterator[tuple[int, Sums | str]]:
    """Ask members once; yield what each one sent, or what is wrong with it, as it arrives."""
    width, classes = module.head.in_features, module.head.out_features
    nodes = context.connected_nodes(members)
    questions = dict.fromkeys(nodes, write(SumsOrder(expected)))
    most = sum(sums_lengths(width, classes).values()) + classes  # a count takes two numbers
    for number, reply in context.replies(SUMS, questions, nodes, traffic, numbers=most):
        sums = read_sums(reply, width, classes)
        said = context.counts.get(number)
        if isinstance(sums, Sums) and said is not None and tuple(sums.counts.tolist()) != said:
            sums = OTHER_COUNTS
        yield number, sums
