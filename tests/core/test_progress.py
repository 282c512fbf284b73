"""Progress as a line of text, and nothing where nobody looks."""

from __future__ import annotations

import io

import pytest

from carvyfl.core.progress import text_line, visible


def test_a_line_overwrites_itself_once_a_percent() -> None:
    stream = io.StringIO()
    with text_line("nothing", stream) as report:
        report(0, 0)
    assert "100 %" in stream.getvalue()
    stream = io.StringIO()
    with text_line("training", stream) as report:
        for done in range(1001):
            report(done, 1000)
    *lines, end = stream.getvalue().split("\r")[1:]
    assert len(lines) == 100  # 0 to 99; the last one ends the line
    assert end.split() == ["training", "100", "%"]
    assert end.endswith("\n")


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with visible("quiet", always=False) as report:
        report(1, 2)
    assert capsys.readouterr() == ("", "")
