"""Makes the trace that ships with the package: a few seconds of a small, busy fleet, invented.

`python -m dynamo_router.bench.sample FILE` writes it anew; a test holds the shipped file to it.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random

from .trace import TRACE_BLOCK_SIZE, TraceRequest, encode_request

SAMPLE_TRACE = Path(__file__).parent / "data" / "sample_trace.jsonl"


@dataclass(frozen=True)
class SampleShape:
    """The traffic to invent. Lengths are in tokens, times in ms; "mean" is exponential's."""

    seed: int = 22
    span_ms: int = 15_000  # sessions start within it, and end with it
    tenants: int = 28
    tenant_skew: float = 0.5  # tenant k is drawn with weight 1 / (k + 1) ** skew
    system_prompt: tuple[int, int] = (800, 4_500)  # each tenant's own, shared by its sessions
    sessions: int = 84
    turns_mean: float = 5.0  # geometric
    think_mean_ms: float = 1_200.0  # between a turn's arrival and the next: agents, not people
    user_mean: float = 900.0  # new tokens a turn, beside the history: tool results, documents
    context_limit: int = 16_000  # a session whose next prompt would be longer is over
    output_mean: float = 36.0
    output_max: int = 160
    cold: int = 25  # requests of no tenant, that share nothing
    cold_prompt: tuple[int, int] = (500, 6_000)


@dataclass(frozen=True)
class _Turn:
    at_ms: int
    owner: tuple[str, int]  # what the prompt begins with: a tenant's system prompt, or nothing
    shared: int  # leading tokens that are the owner's
    session: int
    length: int
    output: int


def make_sample(shape: SampleShape) -> Iterator[TraceRequest]:
    """The requests of `shape` by time; equal shapes give equal requests on every platform.

    A session's turn begins with the whole previous turn and its answer, and its first turn with its
    tenant's system prompt. Only full blocks are shared; every partial last block has its own id.
    """
    # Only Random.random() is drawn from: the one method that Python promises never to change.
    rng = Random(shape.seed)
    turns = [*_session_turns(shape, rng), *_cold_turns(shape, rng)]
    turns.sort(key=lambda turn: (turn.at_ms, turn.session))
    ids: dict[tuple[object, ...], int] = {}
    for turn in turns:
        yield TraceRequest(turn.at_ms, turn.length, turn.output, _block_ids(turn, ids))


def write_sample(path: Path, shape: SampleShape | None = None) -> int:
    """Write the sample trace to `path`; return the number of requests."""
    lines = [encode_request(request) for request in make_sample(shape or SampleShape())]
    path.write_bytes(b"".join(lines))
    return len(lines)


def _session_turns(shape: SampleShape, rng: Random) -> Iterator[_Turn]:
    weights = [1 / (tenant + 1) ** shape.tenant_skew for tenant in range(shape.tenants)]
    prompts = [_between(rng, shape.system_prompt) for _ in range(shape.tenants)]
    for session in range(shape.sessions):
        tenant = _weighted(rng, weights)
        at = rng.random() * shape.span_ms
        history = prompts[tenant]
        while True:
            length = history + 1 + int(_exponential(rng, shape.user_mean))
            if length > shape.context_limit or at > shape.span_ms:
                break
            output = 1 + int(min(_exponential(rng, shape.output_mean), shape.output_max - 1))
            owner = ("tenant", tenant)
            yield _Turn(int(at), owner, prompts[tenant], session, length, output)
            if rng.random() < 1 / shape.turns_mean:
                break
            history = length + output
            at += _exponential(rng, shape.think_mean_ms)


def _cold_turns(shape: SampleShape, rng: Random) -> Iterator[_Turn]:
    for number in range(shape.cold):
        at = int(rng.random() * shape.span_ms)
        length = _between(rng, shape.cold_prompt)
        output = 1 + int(min(_exponential(rng, shape.output_mean), shape.output_max - 1))
        yield _Turn(at, ("cold", number), 0, shape.sessions + number, length, output)


def _block_ids(turn: _Turn, ids: dict[tuple[object, ...], int]) -> tuple[int, ...]:
    """The turn's ids; a block seen for the first time gets the next number."""
    chain = []
    for place in range(-(-turn.length // TRACE_BLOCK_SIZE)):
        end = (place + 1) * TRACE_BLOCK_SIZE
        key: tuple[object, ...]
        if end <= turn.shared:
            key = (*turn.owner, place)
        elif end <= turn.length:
            key = ("session", turn.session, place)
        else:
            key = ("partial", turn.session, turn.length)
        chain.append(ids.setdefault(key, len(ids)))
    return tuple(chain)


def _between(rng: Random, bounds: tuple[int, int]) -> int:
    return bounds[0] + int(rng.random() * (bounds[1] - bounds[0]))


def _exponential(rng: Random, mean: float) -> float:
    return -mean * log(1.0 - rng.random())


def _weighted(rng: Random, weights: list[float]) -> int:
    left = rng.random() * sum(weights)
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return index
    return len(weights) - 1


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE_TRACE
    print(f"{target}: {write_sample(target)} requests")
