"""Reads traces of requests, one JSON object a line (Mooncake's format), and makes their tokens.

A trace holds no text: `hash_ids` name the prompt's blocks of 512 tokens, and an equal id is an
equal prefix. `token_ids` makes prompts that share exactly what the ids share.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...base.errors import ConfigError
from ...process.settings import bad_setting
from ._tokens import fill

TRACE_BLOCK_SIZE = 512
# A prompt of a million tokens is 2000 ids, so a longer line is no trace but some other file.
MAX_LINE_BYTES = 16 << 20

Count = Annotated[int, msgspec.Meta(ge=0)]
HashId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


def check_trace_block_size(tokens: int) -> None:
    """ConfigError unless one hash id may stand for so many tokens: 1 to 2**20."""
    if not 1 <= tokens <= 2**20:
        raise bad_setting("trace_block_size", f"{tokens} must be from 1 to 2**20")


class TraceError(ConfigError):
    """A trace that cannot be used; `path`, and `line` (from 1) where one line is at fault."""

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line


class TraceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request: when it came (ms), its lengths in tokens, and the ids of its prompt's blocks.

    The last block may be partial: there are ceil(input_length / block size) ids.
    """

    timestamp_ms: int | float = msgspec.field(name="timestamp")
    input_length: Count
    output_length: Count
    hash_ids: tuple[HashId, ...]
    tenant: str = ""


def read_trace(
    path: str | Path, *, trace_block_size: int = TRACE_BLOCK_SIZE, limit: int | None = None
) -> Iterator[TraceRequest]:
    """Yield the first `limit` requests of the file at `path`, in its order, each one checked.

    Empty lines are passed over and unknown keys ignored. Raises TraceError, on the way, for: a file
    that cannot be read or holds no request; a line that is not a JSON object with the four keys;
    numbers that are negative; an empty prompt; a number of ids that does not fit the input length;
    a timestamp before the previous one; an id that follows two different ids (the ids are then no
    prefixes). Memory grows with the number of different ids only.
    """
    requests = _in_one_tree(decode_trace(path, trace_block_size=trace_block_size), str(path))
    first = next(requests)
    if limit != 0:
        yield first
        yield from requests if limit is None else islice(requests, limit - 1)


def decode_trace(
    path: str | Path, *, trace_block_size: int = TRACE_BLOCK_SIZE
) -> Iterator[tuple[int, TraceRequest]]:
    """Yield (line number, request) as `read_trace` does, but without looking for two parents.

    For readers that hold the whole prefix tree anyway; needs no memory.
    """
    name = str(path)
    try:
        with open(path, "rb") as file:
            empty = True
            for numbered in _checked(file, name, trace_block_size):
                yield numbered
                empty = False
    except OSError as error:
        raise TraceError(name, None, f"cannot be read: {error.strerror or error}") from error
    if empty:
        raise TraceError(name, None, "holds no request")


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


def _checked(file: BinaryIO, path: str, block_size: int) -> Iterator[tuple[int, TraceRequest]]:
    decoder = msgspec.json.Decoder(TraceRequest)
    latest = float("-inf")
    for line_number, line in enumerate(_lines(file), 1):
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(path, line_number, f"line is longer than {MAX_LINE_BYTES} bytes")
        if line.isspace():
            continue
        try:
            request = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(path, line_number, str(error)) from error
        reason = lengths_fault(request, block_size)
        if request.timestamp_ms < latest:
            reason = f"timestamp {request.timestamp_ms} is before the previous one, {latest}"
        if reason:
            raise TraceError(path, line_number, reason)
        latest = request.timestamp_ms
        yield line_number, request


def _lines(file: BinaryIO) -> Iterable[bytes]:
    return iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")


def lengths_fault(request: TraceRequest, block_size: int) -> str | None:
    """What is wrong with the request's lengths, if anything is."""
    if request.input_length == 0:
        return "input_length is 0: a prompt needs a token"
    expected = -(-request.input_length // block_size)
    if len(request.hash_ids) != expected:
        return (
            f"{len(request.hash_ids)} hash_ids for {request.input_length} input tokens; "
            f"blocks of {block_size} make {expected}"
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
