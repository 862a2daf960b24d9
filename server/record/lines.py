"""The format of a record: a header, then a line for each request. docs/record.md has the fields.

Pure: what is salted here can be compared within one record, and with nothing else.
"""

from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from ...base.package_version import package_version
from ...router.policy import Decision
from ...router.prompt import Prompt
from ..dispatch import totals_of
from ..record_format import FORMAT, VERSION, Header
from ._line import line_of
from ._salting import json_of_salted, siphash_of

LEAST_BLOCK_TOKENS = 64
"""Least tokens of a hash: smaller blocks of the engines are taken together."""
NAME_DIGITS = 12


class EndedRequest(NamedTuple):
    """What a line is made of. Times are seconds of the monotonic clock."""

    arrived: float
    ended: float
    first_at: float | None
    last_at: float
    prompt: Prompt
    streaming: bool
    messages: int
    last_message: bytes
    decision: Decision | None
    worker: str
    session: str
    tenant: str
    ttft_objective_ms: float | None
    itl_objective_ms: float | None
    queue_s: float
    sent_at: float | None
    foreseen_ttft_s: float | None
    soonest_ttft_s: float | None
    attempts: int
    status: str


class Salt:
    """What hides block hashes, sessions and tenants in one record. Its key is written nowhere.

    `began_at` is the monotonic time of the record's begin, `began` the same by the wall clock.
    """

    def __init__(self, key: bytes, began_at: float, began: float) -> None:
        self._key = key
        self.began_at = began_at
        self.began = datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds")

    def name(self, text: str) -> str:
        """A name in place of a name."""
        data = text.encode("utf-8", "surrogatepass")
        return f"{siphash_of(data, self._key):016x}"[:NAME_DIGITS]

    def hashes(self, prompt: Prompt, step: int, unique: int) -> bytes:
        """JSON of a prompt's blocks, `step` of the engines' to each. The last one may be partial:
        it has the hash of its last full block of an engine's, or one that no other has."""
        found = np.ascontiguousarray(prompt.sequence_hashes)
        tail = None
        if prompt.isl % (step * prompt.block_size):
            tail = int(found[-1]) if len(found) % step else unique
        return json_of_salted(found, step, tail, self._key)


def blocks_to_hash(engine_block_size: int) -> int:
    """How many blocks of an engine's one hash of the record stands for."""
    return -(-LEAST_BLOCK_TOKENS // engine_block_size)


def new_header(salt: Salt, engine_block_size: int, model: str, **more: Any) -> Header:
    return Header(
        FORMAT,
        VERSION,
        blocks_to_hash(engine_block_size) * engine_block_size,
        salt.name(f"record of {model}"),
        salt.began,
        engine_block_size,
        model=model,
        software=package_version(),
        **more,
    )


def encode_line(ended: EndedRequest, salt: Salt, step: int, unique: int) -> bytes:
    """A request as a line, newline included. What is not known has no field."""
    prompt, chosen, first_at, arrived = ended.prompt, ended.decision, ended.first_at, ended.arrived
    output, cached = totals_of(ended.last_message)
    if not output and ended.streaming:
        output = ended.messages  # of an engine that does not count in its chunks
    overlap = ttft_s = engine_ttft_s = itl_s = None
    if chosen is not None:
        lower = chosen.host_overlap_blocks + chosen.disk_overlap_blocks
        overlap = min(prompt.isl, chosen.cached_tokens + lower * prompt.block_size)
    if first_at is not None and ended.streaming:
        ttft_s = first_at - arrived
        if ended.sent_at is not None:
            engine_ttft_s = first_at - ended.sent_at
        if output > 1:
            itl_s = (ended.last_at - first_at) / (output - 1)
    ttft_ms, itl_ms = ended.ttft_objective_ms, ended.itl_objective_ms
    return line_of(
        max(0.0, arrived - salt.began_at),
        prompt.isl,
        output,
        salt.hashes(prompt, step, unique),
        (
            ended.status,
            ended.session and salt.name(ended.session),
            ended.tenant and salt.name(ended.tenant),
            ended.worker,
        ),
        overlap,
        None if first_at is None else cached,
        (
            ttft_s,
            itl_s,
            ended.ended - arrived,
            ended.queue_s,
            engine_ttft_s,
            ended.foreseen_ttft_s,
            ended.soonest_ttft_s,
            None if ttft_ms is None else ttft_ms / 1e3,
            None if itl_ms is None else itl_ms / 1e3,
        ),
        ended.attempts,
    )
