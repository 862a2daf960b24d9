"""A whole trace as arrays, a request a row: what the analyzer and the synthesizer compute on."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .trace import TraceRequest, decode_trace
from .trace_lines import TRACE_BLOCK_SIZE, block_size_of


@dataclass(frozen=True, eq=False)
class TraceColumns:
    """Requests in their order. The ids of request i are `ids[offsets[i]:offsets[i + 1]]`.

    `source` and `lines` (from 1) name a request's place in an error; times are in ms, lengths in
    tokens. Whether the ids form a tree is not checked here.
    """

    source: str
    block_size: int
    lines: NDArray[np.uint32]
    timestamps_ms: NDArray[np.float64]
    input_lengths: NDArray[np.int64]
    output_lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ids: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.input_lengths)

    @property
    def blocks(self) -> NDArray[np.int64]:
        """How many blocks each prompt has, a partial last one included."""
        return np.diff(self.offsets)


def read_columns(path: str | Path, *, trace_block_size: int | None = None) -> TraceColumns:
    """Read the trace at `path`. TraceError as `decode_trace` raises it; 8 bytes an id."""
    size = block_size_of(path, trace_block_size)
    return _gather(decode_trace(path, trace_block_size=size), str(path), size)


def columns_of(
    requests: Iterable[TraceRequest], *, trace_block_size: int = TRACE_BLOCK_SIZE
) -> TraceColumns:
    """The columns of requests that are already checked; their lines count from 1."""
    return _gather(enumerate(requests, 1), "the requests", trace_block_size)


def _gather(
    numbered: Iterable[tuple[int, TraceRequest]], source: str, block_size: int
) -> TraceColumns:
    lines, times = array("I"), array("d")
    inputs, outputs, blocks = array("q"), array("q"), array("q", [0])
    ids = array("Q")
    for line, request in numbered:
        lines.append(line)
        times.append(request.timestamp_ms)
        inputs.append(request.input_length)
        outputs.append(request.output_length)
        blocks.append(len(request.hash_ids))
        ids.extend(request.hash_ids)
    return TraceColumns(
        source=source,
        block_size=block_size,
        lines=np.asarray(lines, np.uint32),
        timestamps_ms=np.asarray(times, np.float64),
        input_lengths=np.asarray(inputs, np.int64),
        output_lengths=np.asarray(outputs, np.int64),
        offsets=np.cumsum(np.asarray(blocks, np.int64)),
        ids=np.asarray(ids, np.uint64),
    )
