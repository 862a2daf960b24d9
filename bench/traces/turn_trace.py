"""Reads traces whose requests may be turns of sessions.

A line is one of trace.py's, and may have a `session_id`. A later turn of a session has a `delay`
(ms) in place of a timestamp: it is sent that long after the answer to the turn before it.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

import msgspec

from .trace import (
    MAX_LINE_BYTES,
    TRACE_BLOCK_SIZE,
    Count,
    HashId,
    TraceError,
    TraceRequest,
    lengths_fault,
    parent_fault,
)


class Turn(NamedTuple):
    """A request, and what it waits for: then the timestamp is that of its session."""

    request: TraceRequest
    previous: int | None = None  # place in the trace of the turn before it
    delay_ms: float = 0.0


class _Row(msgspec.Struct, frozen=True):
    input_length: Count
    output_length: Count
    hash_ids: tuple[HashId, ...]
    timestamp: int | float | None = None
    session_id: str | int | None = None
    delay: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tenant: str | None = None


def read_turns(
    path: str | Path, *, trace_block_size: int = TRACE_BLOCK_SIZE, limit: int | None = None
) -> list[Turn]:
    """The first `limit` requests of the file at `path`, at least one, each one checked.

    Raises TraceError as `read_trace` does, and for a `delay` without a turn before it, or one that
    is negative.
    """
    name = str(path)
    try:
        with open(path, "rb") as file:
            turns = list(islice(_checked(file, name, trace_block_size), limit))
    except OSError as error:
        raise TraceError(name, None, f"cannot be read: {error.strerror or error}") from error
    if not turns:
        raise TraceError(name, None, "holds no request")
    return turns


def _checked(file: BinaryIO, path: str, block_size: int) -> Iterator[Turn]:
    decoder = msgspec.json.Decoder(_Row)
    parents: dict[int, int] = {}
    latest: dict[str | int, int] = {}  # session -> place of its last turn
    times: list[float] = []
    now = float("-inf")
    lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
    for line_number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(path, line_number, f"line is longer than {MAX_LINE_BYTES} bytes")
        if line.isspace():
            continue
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(path, line_number, str(error)) from error
        previous = latest.get(row.session_id) if row.session_id is not None else None
        follows = row.delay is not None and previous is not None
        reason = None
        if follows:
            assert previous is not None
            time = times[previous]
        elif row.timestamp is None:
            time = now
            reason = "a request needs a timestamp, or a delay behind a turn of its session"
        else:
            time = row.timestamp
            if time < now:
                reason = f"timestamp {time} is before the previous one, {now}"
            now = time
        request = TraceRequest(
            time, row.input_length, row.output_length, row.hash_ids, row.tenant or ""
        )
        reason = reason or lengths_fault(request, block_size) or parent_fault(request, parents)
        if reason:
            raise TraceError(path, line_number, reason)
        if row.session_id is not None:
            latest[row.session_id] = len(times)
        times.append(time)
        yield Turn(request, previous, row.delay or 0.0) if follows else Turn(request)
