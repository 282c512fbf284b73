"""A client that fails says which kind of failure it was, and not what its exception says."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.task_identity import TaskIdentity

from carvyfl.flower.client import client_app
from carvyfl.flower.questions import ATTEMPTS, replies
from carvyfl.flower.wire import COUNTS, FAULTS, SUMS

PATIENT = "Erika Mustermann"


class Site:
    """A grid of one node, with the real ClientApp behind it."""

    def __init__(self, data: Any, settings: dict[str, Any]) -> None:
        self.app, self.settings = client_app(data), settings
        self.answers: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        (question,) = messages
        context = Context(1, 1, {}, RecordDict(), dict(self.settings))
        self.answers.append(self.app(question, context))
        return [str(len(self.answers) - 1)]

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return [self.answers[int(name)] for name in names]


def missing_file(_: Context) -> Any:
    with open(f"/nowhere/{PATIENT}.png") as image:
        return image


def labels(_: Context) -> Any:
    return np.zeros((4, 2), np.float32), np.array([0, 1, 2, 7])  # a label beyond the classes


def usable(_: Context) -> Any:
    return np.zeros((4, 2), np.float32), np.arange(4)


ONE_SHOT = {"carvy.learner": "one-shot", "carvy.features": "none", "carvy.num-classes": 4}


@pytest.mark.parametrize(
    ("data", "settings", "kind", "fault"),
    [
        (missing_file, ONE_SHOT, COUNTS, "data"),
        (labels, ONE_SHOT, COUNTS, "data"),
        (usable, {**ONE_SHOT, "carvy.features": PATIENT}, COUNTS, "settings"),
        (usable, ONE_SHOT, SUMS, "message"),
    ],
)
def test_the_text_of_an_exception_stays_with_the_client(
    data: Any,
    settings: dict[str, Any],
    kind: str,
    fault: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    site: Any = Site(data, settings)
    with caplog.at_level(logging.INFO, "flwr"):
        found = list(replies(site, kind, {7: RecordDict()}, 60, numbers=4))
    # What another question may mend is asked again; what cannot be mended is the answer.
    passing = fault == "data"
    assert found == ([] if passing else [(7, FAULTS[fault])])
    assert len(site.answers) == (ATTEMPTS if passing else 1)
    for answer in site.answers:
        sent = message_to_proto(answer).SerializeToString()
        assert answer.error.reason == fault
        assert len(sent) < 300
        for secret in (PATIENT, "/nowhere", "Error", "Traceback", "label"):
            assert secret.encode() not in sent
    # Both halves run in this process: what the client logs has a traceback, the server's has none.
    server = [record for record in caplog.records if record.exc_info is None]
    said = {f"carvy: node 7 failed: {FAULTS[fault]}"} if passing else set()
    assert {record.getMessage() for record in server} == said
    client = [record for record in caplog.records if record.exc_info]
    assert len(client) == len(site.answers)
    assert data is not missing_file or PATIENT in caplog.text
