"""Reads traces whose requests may be turns of sessions.

A line is one of trace.py's, and may have a `session_id`. A later turn of a session has a `delay`
(ms) in place of a timestamp: it is sent that long after the answer to the turn before it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from .trace import HashId, Tokens, TraceRequest, lengths_fault, parent_fault, read_trace
from .trace_lines import Line, TraceError, block_size_of, files_of, read_header, read_lines


class Turn(NamedTuple):
    """A request, and what it waits for: then the timestamp is that of its session."""

    request: TraceRequest
    previous: int | None = None  # place in the trace of the turn before it
    delay_ms: float = 0.0


class _Row(msgspec.Struct, frozen=True):
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[HashId, ...]
    timestamp: int | float | None = None
    session_id: str | int | None = None
    delay: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tenant: str | None = None


def read_turns(
    path: str | Path, *, trace_block_size: int | None = None, limit: int | None = None
) -> list[Turn]:
    """The first `limit` requests of the file at `path`, at least one, each one checked.

    Raises TraceError as `read_trace` does, and for a `delay` without a turn before it, or one that
    is negative.
    """
    size = block_size_of(path, trace_block_size)
    if read_header(path) is not None or len(files_of(path)) > 1:  # or it is refused there
        requests = read_trace(path, trace_block_size=size, limit=limit)
        return [Turn(request) for request in requests]
    turns = list(islice(_checked(read_lines(str(path)), size), limit))
    if not turns:
        raise TraceError(str(path), None, "holds no request")
    return turns


def _checked(lines: Iterable[Line], block_size: int) -> Iterator[Turn]:
    decoder = msgspec.json.Decoder(_Row)
    parents: dict[int, int] = {}
    latest: dict[str | int, int] = {}  # session -> place of its last turn
    times: list[float] = []
    now = float("-inf")
    for line in lines:
        try:
            row = decoder.decode(line.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(line.path, line.number, str(error)) from error
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
            raise TraceError(line.path, line.number, reason)
        if row.session_id is not None:
            latest[row.session_id] = len(times)
        times.append(time)
        yield Turn(request, previous, row.delay or 0.0) if follows else Turn(request)
