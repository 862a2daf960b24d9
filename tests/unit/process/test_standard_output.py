"""A line to standard output is one write, also where Python does not buffer it."""

import io
import sys

import pytest

from dynamo_router.process.standard_output import print_line


class Writes(io.RawIOBase):
    """A file that keeps each write apart."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.pieces.append(bytes(data))  # type: ignore[call-overload]
        return len(self.pieces[-1])


def test_nothing_of_another_thread_can_come_into_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = Writes()
    unbuffered = io.TextIOWrapper(writes, encoding="utf-8", write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stdout", unbuffered)
    print_line("dynamo-router ready: ü")
    assert writes.pieces == ["dynamo-router ready: ü\n".encode()]
