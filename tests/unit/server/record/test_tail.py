"""RecordTail: bounded, kept only for readers, and honest about what is gone."""

import time

import pytest

from dynamo_router.server.record import tail as module
from dynamo_router.server.record.tail import RecordTail

MOST = 1 << 16


def lines_of(tail: RecordTail, since: int, most: int = MOST) -> list[bytes]:
    return [line.line for line in tail.since(since, most)[0]]


def test_nothing_is_kept_before_there_is_a_reader() -> None:
    tail = RecordTail()
    tail.append("", [b"a\n", b"b\n"])
    assert tail.since(0, MOST) == ([], 2, 2)
    tail.append("tiny", [b"c\n"])
    ((number, model, line),), missed, last = tail.since(2, MOST)
    assert (number, model, line, missed, last) == (3, "tiny", b"c\n", 0, 3)


def test_pages_are_bounded_and_have_one_line_at_least() -> None:
    tail = RecordTail()
    tail.since(0, MOST)
    tail.append("", [b"x" * 10, b"y" * 10, b"z" * 10])
    assert lines_of(tail, 0, 20) == [b"x" * 10, b"y" * 10]
    assert lines_of(tail, 2, 1) == [b"z" * 10]


def test_the_oldest_go_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 25)
    tail = RecordTail()
    tail.since(0, MOST)
    tail.append("", [b"x" * 10, b"y" * 10, b"z" * 10])
    found, missed, last = tail.since(0, MOST)
    assert ([line.number for line in found], missed, last) == ([2, 3], 1, 3)
    assert tail.since(1, MOST)[1] == 0
    monkeypatch.setattr(module, "MAX_LINES", 1)
    tail.append("", [b"v"])
    assert tail.since(1, MOST)[1] == 2


def test_a_reader_that_is_gone_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tail = RecordTail()
    tail.since(0, MOST)
    tail.append("", [b"a"])
    now[0] = module.READERS_GONE_S + 1
    tail.append("", [b"b"])
    assert tail.since(0, MOST) == ([], 2, 2)


def test_another_process_has_another_name() -> None:
    assert RecordTail().process != RecordTail().process
