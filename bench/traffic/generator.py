"""Makes requests from a TrafficSpec: sessions that open, take turns, share what they begin with.

Arrivals are open loop: a turn comes when the answer before it would be over on an engine that
takes ANSWER_TOKEN_S a token, so that every policy gets the same requests at the same times.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple

from ..synthesizer import Stream, Streams
from ..traces import TraceRequest
from .spec import TrafficSpec

TRAFFIC_BLOCK_SIZE = 64
"""Tokens that an id stands for: short prompts share little of blocks that are longer."""
ANSWER_TOKEN_S = 0.015
WARM_UP_SESSIONS = 3  # mean session lengths before the first request that is kept
_NORMAL = NormalDist()


class _Turn(NamedTuple):
    """A turn to come, ordered by time. The prompt before it had `tokens`, `ids` its full blocks."""

    time_s: float
    order: int
    ids: tuple[int, ...]
    tokens: int  # of the prompt it carries on from, with the answer to that
    base_ids: tuple[int, ...]  # of the shared beginning
    base_tokens: int
    of_job: bool = False


def generate_traffic(
    spec: TrafficSpec, requests: int, *, rate: float, seed: int, first_id: int = 0
) -> list[TraceRequest]:
    """`requests` at `rate` a second in the mean, ascending by time from 0 ms.

    The trace has blocks of TRAFFIC_BLOCK_SIZE, with ids from `first_id` on. Equal arguments give
    equal requests. Sessions have been under way for some time when the first request comes.
    """
    if requests < 1 or not rate > 0:
        raise ValueError(f"cannot make {requests} requests at {rate} a second")
    walker = _Sessions(spec, rate, Streams(seed), first_id)
    made: list[TraceRequest] = []
    begin = None
    for time_s, length, output, ids in walker.turns():
        if time_s < walker.warm_up_s:
            continue
        begin = time_s if begin is None else begin
        made.append(TraceRequest(round((time_s - begin) * 1e3), length, output, ids))
        if len(made) == requests:
            break
    return made


class _Sessions:
    def __init__(self, spec: TrafficSpec, rate: float, streams: Streams, first_id: int) -> None:
        self._spec = spec
        self._next_id = first_id
        self._order = 0
        self._pending: list[_Turn] = []
        self._arrivals, self._choice = streams["arrivals"], streams["prefixes"]
        self._lengths, self._outputs = streams["lengths"], streams["outputs"]
        self._pauses, self._sizes = streams["pauses"], streams["sizes"]
        self._shares = _cumulative_shares(spec.prefixes, spec.popularity)
        self._passages = streams["passages"]
        self._chunk_shares: list[float] = []
        if spec.chunks is not None:
            self._chunk_shares = _cumulative_shares(spec.chunks.pool, spec.chunks.popularity)
        # By the ids before them and the passage.
        self._chunk_ids: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        lengths = streams["prefix lengths"]
        self._prefixes: list[tuple[tuple[int, ...], int]] = []
        for _ in range(spec.prefixes):
            tokens = _lognormal(lengths, spec.prefix_tokens, spec.prefix_spread)
            tokens = min(tokens, spec.max_prompt_tokens // 2)
            self._prefixes.append((self._fresh(tokens // TRAFFIC_BLOCK_SIZE), tokens))
        # A side session has as many turns as any other, and side sessions of its own.
        per_session = spec.turns / (1 - spec.forks * spec.turns)
        jobs, self._job_share = spec.jobs, 0.0  # of openings
        if jobs is not None:
            of_jobs = jobs.share / jobs.requests
            self._job_share = of_jobs / (of_jobs + (1 - jobs.share) / per_session)
            per_session += self._job_share * (jobs.requests - per_session)
        self._opening_rate = rate / per_session / spec.job_requests
        answer_s = spec.output_tokens * ANSWER_TOKEN_S
        self.warm_up_s = WARM_UP_SESSIONS * spec.turns * (spec.pause_s + answer_s)

    def turns(self) -> Iterator[tuple[float, int, int, tuple[int, ...]]]:
        """Time, prompt length, output length and ids of every request, by time, for ever."""
        for opening_s in self._openings():
            while self._pending and self._pending[0].time_s <= opening_s:
                found = self._take(heappop(self._pending))
                if found is not None:
                    yield found
            ids, tokens = self._beginning(opening_s)
            of_job = self._job_share > 0 and self._sizes.random() < self._job_share
            jobs = self._spec.jobs
            size = jobs.requests if of_job and jobs is not None else self._spec.job_requests
            for _ in range(self._geometric(size)):
                self._add(opening_s, ids, tokens, ids, tokens, of_job)

    def _beginning(self, now: float) -> tuple[tuple[int, ...], int]:
        """The ids and tokens that a session which opens now begins with."""
        spec, place = self._spec, _draw(self._choice, self._shares)
        if spec.drift_s > 0:
            place = (place + int(now / spec.drift_s)) % spec.prefixes
        ids, tokens = self._prefixes[place]
        if spec.chunks is None:
            return ids, tokens
        blocks = max(1, spec.chunks.tokens // TRAFFIC_BLOCK_SIZE)
        taken: set[int] = set()
        while len(taken) < spec.chunks.taken:
            chunk = _draw(self._passages, self._chunk_shares)
            if chunk in taken:
                continue
            taken.add(chunk)
            # A block's id stands for all before it, too: a passage behind another one has others.
            key = ids, chunk
            if key not in self._chunk_ids:
                self._chunk_ids[key] = (*ids, *self._fresh(blocks))
            ids = self._chunk_ids[key]
        return ids, len(ids) * TRAFFIC_BLOCK_SIZE

    def _openings(self) -> Iterator[float]:
        """Times at which sessions open; within bursts more often than between them."""
        now, bursts, stream = 0.0, self._spec.bursts, self._arrivals
        peak = self._opening_rate * (bursts.factor if bursts else 1.0)
        while True:
            now -= math.log(1 - stream.random()) / peak
            if bursts is not None and now % bursts.period_s >= bursts.on_s:
                rest = bursts.period_s - bursts.on_s
                between = (bursts.period_s - bursts.factor * bursts.on_s) / rest
                if stream.random() >= between / bursts.factor:
                    continue
            yield now

    def _take(self, turn: _Turn) -> tuple[float, int, int, tuple[int, ...]] | None:
        """The request of a turn, None where it would be too long; what follows it is pending."""
        spec = self._spec
        lengths = spec.jobs if turn.of_job and spec.jobs is not None else spec
        length = turn.tokens + _lognormal(self._lengths, lengths.user_tokens, spec.user_spread)
        if length > spec.max_prompt_tokens:
            return None
        blocks = -(-length // TRAFFIC_BLOCK_SIZE)
        ids = (*turn.ids, *self._fresh(blocks - len(turn.ids)))
        output = _lognormal(self._outputs, lengths.output_tokens, spec.output_spread)
        if turn.of_job:
            return turn.time_s, length, output, ids
        if spec.history:
            carried, tokens = ids[: length // TRAFFIC_BLOCK_SIZE], length + output
        else:
            carried, tokens = turn.base_ids, turn.base_tokens
        over_s = turn.time_s + output * ANSWER_TOKEN_S
        followers = int(self._sizes.random() < 1 - 1 / spec.turns)
        followers += int(spec.forks > 0 and self._sizes.random() < spec.forks)
        for _ in range(followers):
            pause_s = spec.pause_s * _spread(self._pauses, spec.pause_spread)
            self._add(over_s + pause_s, carried, tokens, turn.base_ids, turn.base_tokens)
        return turn.time_s, length, output, ids

    def _add(
        self,
        time_s: float,
        ids: tuple[int, ...],
        tokens: int,
        base_ids: tuple[int, ...],
        base_tokens: int,
        of_job: bool = False,
    ) -> None:
        self._order += 1
        turn = _Turn(time_s, self._order, ids, tokens, base_ids, base_tokens, of_job)
        heappush(self._pending, turn)

    def _geometric(self, mean: float) -> int:
        """At least 1, with this mean."""
        if mean == 1:
            return 1
        return 1 + int(math.log(1 - self._sizes.random()) / math.log(1 - 1 / mean))

    def _fresh(self, count: int) -> tuple[int, ...]:
        start = self._next_id
        self._next_id += count
        return tuple(range(start, start + count))


def _cumulative_shares(count: int, popularity: float) -> list[float]:
    """Of the k-th and those before it, by weights of k ** -popularity."""
    weights = [(place + 1) ** -popularity for place in range(count)]
    return [part / sum(weights) for part in accumulate(weights)]


def _draw(stream: Stream, shares: list[float]) -> int:
    """A place of those by their cumulative shares."""
    return min(bisect_right(shares, stream.random()), len(shares) - 1)


def _spread(stream: Stream, spread: float) -> float:
    """A lognormal factor with a mean of 1."""
    share = min(max(stream.random(), 1e-12), 1 - 1e-12)
    return math.exp(spread * _NORMAL.inv_cdf(share) - spread * spread / 2)


def _lognormal(stream: Stream, mean: float, spread: float) -> int:
    """A length of at least 1 with about this mean."""
    return max(1, round(mean * _spread(stream, spread)))
