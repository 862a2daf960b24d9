"""Reads traces of requests, one JSON object a line (Mooncake's format), and makes their tokens.

A trace holds no text: `hash_ids` name the prompt's blocks of 512 tokens, and an equal id is an
equal prefix. `token_ids` makes prompts that share exactly what the ids share.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...server.record_format import MOST_MS, MOST_TOKENS, Header
from ._tokens import fill
from .trace_lines import (
    TRACE_BLOCK_SIZE,
    Line,
    TraceError,
    block_size_of,
    files_of,
    header_of,
    read_header,
    read_lines,
)

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
MOST_TRIES = 3
Duration = Annotated[float, msgspec.Meta(ge=-MOST_MS, le=MOST_MS)]
_MS = msgspec.Meta(ge=-(10**13), le=10**13)  # three centuries
Milliseconds = Annotated[int, _MS] | Annotated[float, _MS]
HashId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
R = TypeVar("R", bound="TraceRequest")


class TraceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request: when it came (ms), its lengths in tokens, and the ids of its prompt's blocks.

    The last block may be partial: there are ceil(input_length / block size) ids.
    """

    timestamp_ms: Milliseconds = msgspec.field(name="timestamp")
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[HashId, ...]
    tenant: str = ""


class RecordedRequest(TraceRequest, frozen=True, omit_defaults=True):
    """One request of a record: what became of it. Times in ms; None where it is not known.

    `overlap_tokens` are those that its worker was expected to have cached, `cached_tokens` what its
    engine reported. `engine_ttft_ms` counts from when it was sent, as `foreseen_ttft_ms` does: what
    the policy foresaw of its worker; `soonest_ttft_ms` is what it foresaw of the soonest one.
    """

    status: str = ""
    session_id: str = ""
    worker: str = ""
    overlap_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_ms: Duration | None = None
    itl_ms: Duration | None = None
    e2e_ms: Duration | None = None
    queue_ms: Duration | None = None
    engine_ttft_ms: Duration | None = None
    foreseen_ttft_ms: Duration | None = None
    soonest_ttft_ms: Duration | None = None
    ttft_objective_ms: Duration | None = None
    itl_objective_ms: Duration | None = None
    attempts: int = 1


class Record(NamedTuple):
    """Some files of one record: their headers by path, in the order that the paths were given in,
    and all requests as they arrived."""

    headers: dict[str, Header]
    requests: list[RecordedRequest]

    @property
    def header(self) -> Header:
        """The first file's; those of the others have the same block size and record."""
        return next(iter(self.headers.values()))


def read_trace(
    path: str | Path, *, trace_block_size: int | None = None, limit: int | None = None
) -> Iterator[TraceRequest]:
    """Yield the first `limit` requests of the file at `path`, in its order, each one checked.

    Files may be compressed with gzip. A record is put in the order of arrival, and may be several
    files, which a pattern names. Empty lines are passed over and unknown keys ignored. Raises
    TraceError, on the way, for: a file that cannot be read or holds no request; a line that is not
    a JSON object with the four keys; numbers that are negative or beyond any sense; an empty
    prompt; a number of ids that does not fit the input length; a timestamp before the previous one;
    an id that follows two different ids (the ids are then no prefixes); a record of another
    version, or with another block size than is asked for. Memory grows with the number of different
    ids only, or the record.
    """
    requests = _in_one_tree(decode_trace(path, trace_block_size=trace_block_size), str(path))
    first = next(requests)
    if limit != 0:
        yield first
        yield from requests if limit is None else islice(requests, limit - 1)


def decode_trace(
    path: str | Path, *, trace_block_size: int | None = None
) -> Iterator[tuple[int, TraceRequest]]:
    """Yield (line number, request) as `read_trace` does, but without looking for two parents.

    For readers that hold the whole prefix tree anyway; needs no memory, but for a record.
    """
    block_size = block_size_of(path, trace_block_size)
    if read_header(path) is not None:
        yield from enumerate(read_record(files_of(path)).requests, 1)
        return
    file, *others = files_of(path)
    if others:
        text = f"names {1 + len(others)} files: only those of a record are read together"
        raise TraceError(str(path), None, text)
    empty = True
    for numbered in _checked(read_lines(file), block_size):
        yield numbered
        empty = False
    if empty:
        raise TraceError(file, None, "holds no request")


def read_record(files: Sequence[str]) -> Record:
    """The files of one record. TraceError, naming file and line, for what `read_trace` refuses, a
    file that is no record, and files that do not belong together: other salts, other blocks."""
    headers: dict[str, Header] = {}
    requests: list[RecordedRequest] = []
    decoder = msgspec.json.Decoder(RecordedRequest)
    for path, first, lines in _in_turn(files):
        if first is None:
            raise TraceError(path, None, "holds no request")
        header = header_of(first)
        if header is None:
            text = "no record: its first line is no header of one"
            raise TraceError(path, first.number, text)
        _check_alike(header, path, headers)
        headers[path] = header
        for line in lines:
            requests.append(_decoded(line, decoder, header.block_size))
    if not requests:
        raise TraceError(files[0], None, "holds no request")
    requests.sort(key=lambda request: request.timestamp_ms)
    return Record({path: headers[path] for path in files}, requests)


def _in_turn(files: Sequence[str]) -> Iterator[tuple[str, Line | None, Iterator[Line]]]:
    """Each file with its first line and the others, opened once the one before was read. A file
    that is rotated meanwhile is read once, under its new name."""
    found = [_identity(path) for path in files]
    for _ in range(MOST_TRIES):
        before, found = found, [_identity(path) for path in files]
        if before == found:
            break
    # The next one that is rotated away is the oldest.
    for identity, path in sorted(zip(found, files, strict=True), key=lambda each: each[0].written):
        lines = _lines_of(identity, path)
        yield path, next(lines, None), lines


class _Identity(NamedTuple):
    """Of a file, whatever its name; zeros: it cannot be read."""

    device: int = 0
    inode: int = 0
    written: int = 0

    def is_at(self, path: str) -> bool:
        return _identity(path)[:2] == self[:2]


def _identity(path: str) -> _Identity:
    try:
        found = os.stat(path)
    except OSError:  # read_lines says so
        return _Identity()
    return _Identity(found.st_dev, found.st_ino, found.st_mtime_ns)


def _lines_of(identity: _Identity, path: str) -> Iterator[Line]:
    """Those of the file that had this path; TraceError if it is gone."""
    for _ in range(MOST_TRIES):
        folder, at = Path(path).parent, path
        if not identity.is_at(path):
            at = next((str(each) for each in folder.iterdir() if identity.is_at(str(each))), "")
        if not at:
            break
        lines = read_lines(at)
        first = next(lines, None)
        if identity.is_at(at):  # else another one had that name by then
            if first is not None:
                yield first
            yield from lines
            return
    raise TraceError(path, None, "was rotated away before it was read")


def _check_alike(header: Header, path: str, others: Mapping[str, Header]) -> None:
    """TraceError unless it is of the same record as those before it."""
    if not others:
        return
    other, known = next(iter(others.items()))
    if header.block_size != known.block_size:
        text = f"blocks of {header.block_size} tokens, and those of {other} have {known.block_size}"
        raise TraceError(path, 1, f"{text}: read them apart")
    if header.record != known.record:
        text = f"another record than {other}: of another model, or of a router started anew"
        raise TraceError(path, 1, f"{text}, which has other salts; read them apart")


def encode_request(request: TraceRequest) -> bytes:
    """The request as a line of a trace, newline included."""
    return msgspec.json.encode(request) + b"\n"


def token_ids(
    request: TraceRequest,
    vocab_size: int,
    *,
    seed: int = 0,
    trace_block_size: int = TRACE_BLOCK_SIZE,
) -> NDArray[np.uint32]:
    """The prompt's token ids: shape (input_length,), all below `vocab_size` (2 to 2**32).

    A token depends on its block's id, its place in the block, the seed and the vocabulary, and on
    nothing else; another seed is another content with the same sharing.
    """
    if not 2 <= vocab_size <= 2**32:
        raise ValueError(f"vocab_size must be from 2 to 2**32, not {vocab_size}")
    tokens = np.empty(request.input_length, np.uint32)
    write_tokens(tokens, request.hash_ids, vocab_size, seed=seed, block_size=trace_block_size)
    return tokens


def write_tokens(
    tokens: NDArray[np.uint32],
    hash_ids: Sequence[int],
    vocab_size: int,
    *,
    seed: int,
    block_size: int,
) -> None:
    """Fill `tokens` with those that blocks of `block_size` with these ids stand for.

    The last block may be partial. Ids are below 2**64. ValueError if they are too few.
    """
    ids = np.array(hash_ids, np.uint64)
    fill(tokens, ids, seed & (2**64 - 1), vocab_size, block_size)


def _in_one_tree(requests: Iterable[tuple[int, TraceRequest]], path: str) -> Iterator[TraceRequest]:
    parents: dict[int, int] = {}
    for line_number, request in requests:
        if reason := parent_fault(request, parents):
            raise TraceError(path, line_number, reason)
        yield request


def _checked(lines: Iterable[Line], block_size: int) -> Iterator[tuple[int, TraceRequest]]:
    decoder = msgspec.json.Decoder(TraceRequest)
    latest = float("-inf")
    for line in lines:
        request = _decoded(line, decoder, block_size)
        if request.timestamp_ms < latest:
            reason = f"timestamp {request.timestamp_ms} is before the previous one, {latest}"
            raise TraceError(line.path, line.number, reason)
        latest = request.timestamp_ms
        yield line.number, request


def _decoded(line: Line, decoder: msgspec.json.Decoder[R], block_size: int) -> R:
    try:
        request = decoder.decode(line.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(line.path, line.number, str(error)) from error
    if reason := lengths_fault(request, block_size):
        raise TraceError(line.path, line.number, reason)
    return request


def lengths_fault(request: TraceRequest, block_size: int) -> str | None:
    """What is wrong with the request's lengths, if anything is."""
    if request.input_length == 0:
        return "input_length is 0: a prompt needs a token"
    expected = -(-request.input_length // block_size)
    if len(request.hash_ids) != expected:
        return (
            f"{len(request.hash_ids)} hash_ids for {request.input_length} input tokens; "
            f"blocks of {block_size} make {expected}: see --trace-block-size"
        )
    return None


def parent_fault(request: TraceRequest, parents: dict[int, int]) -> str | None:
    """What breaks the tree property, if anything does; `parents` learns the request's chain."""
    parent = -1
    for block in request.hash_ids:
        known = parents.setdefault(block, parent)
        if known != parent:
            return two_parents(block, known, parent)
        parent = block
    return None


def two_parents(block: int, one: int, other: int) -> str:
    """How to say that `block` follows two different ids; -1 is the start of a prompt."""
    places = ["the start" if place < 0 else f"id {place}" for place in (one, other)]
    return f"hash id {block} has two parents: {places[0]} and {places[1]}"
