"""The format of a record: a header, then a line for each request. docs/record.md has the fields.

Pure: what is salted here can be compared within one record, and with nothing else.
"""

import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ...base.package_version import package_version
from ...router.policy import Decision
from ...router.prompt import Prompt
from ..dispatch import totals_of
from ..record_format import FORMAT, VERSION, Header
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


class _Line(msgspec.Struct, omit_defaults=True):
    """A request, as it is written."""

    timestamp: float
    input_length: int
    output_length: int = -1
    """always there: no default is a length"""
    hash_ids: msgspec.Raw = msgspec.Raw()
    status: str = ""
    session_id: str = ""
    tenant: str = ""
    worker: str = ""
    overlap_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    queue_ms: float | None = None
    engine_ttft_ms: float | None = None
    foreseen_ttft_ms: float | None = None
    soonest_ttft_ms: float | None = None
    ttft_objective_ms: float | None = None
    itl_objective_ms: float | None = None
    attempts: int = 1


_encode = msgspec.json.Encoder().encode


def encode_line(ended: EndedRequest, salt: Salt, step: int, unique: int) -> bytes:
    """A request as a line, newline included. What is not known has no field."""
    prompt, chosen, first_at = ended.prompt, ended.decision, ended.first_at
    output, cached = totals_of(ended.last_message)
    if not output and ended.streaming:
        output = ended.messages  # of an engine that does not count in its chunks
    line = _Line(
        max(0.0, _ms(ended.arrived - salt.began_at)),
        prompt.isl,
        output,
        msgspec.Raw(salt.hashes(prompt, step, unique)),
        ended.status,
        ended.session and salt.name(ended.session),
        ended.tenant and salt.name(ended.tenant),
        ended.worker,
        e2e_ms=_ms(ended.ended - ended.arrived),
        queue_ms=_ms(ended.queue_s),
        foreseen_ttft_ms=_known_ms(ended.foreseen_ttft_s),
        soonest_ttft_ms=_known_ms(ended.soonest_ttft_s),
        ttft_objective_ms=_rounded(ended.ttft_objective_ms),
        itl_objective_ms=_rounded(ended.itl_objective_ms),
        attempts=ended.attempts,
    )
    if chosen is not None:
        lower = chosen.host_overlap_blocks + chosen.disk_overlap_blocks
        line.overlap_tokens = min(prompt.isl, chosen.cached_tokens + lower * prompt.block_size)
    if first_at is not None:
        line.cached_tokens = cached
        if ended.streaming:
            line.ttft_ms = _ms(first_at - ended.arrived)
            if ended.sent_at is not None:
                line.engine_ttft_ms = _ms(first_at - ended.sent_at)
            if output > 1:
                line.itl_ms = _ms((ended.last_at - first_at) / (output - 1))
    return _encode(line) + b"\n"


def _ms(seconds: float) -> float:
    """To three decimals: `round` takes ten times as long."""
    return int(seconds * 1e6 + 0.5) / 1e3


def _known_ms(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else _ms(seconds)


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else _ms(milliseconds / 1e3)
