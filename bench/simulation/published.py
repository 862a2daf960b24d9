"""Policies that others have published, from their formulas: baselines for a comparison.

A further one, LMetric, the router has itself.

Each knows what a router of its kind could know: the overlaps that this router's index tells, the
load that its slots tell, and what engines report. None of them holds requests.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from ...engines.mocker import VirtualFleet
from ...router.policy import Candidates, Floats, Mask, Policy
from ...workers.registry import WorkerEntry

PREBLE_WINDOW_S = 180.0  # of the load that a worker counts with; the paper's default
PREBLE_BALANCE = 1.5  # load over the least, above which a cached prefix is not followed
PREBLE_ANSWERS = 200  # late ones that medians are of
PREBLE_ANSWER_TOKENS, PREBLE_TOKEN_S = 45, 0.15  # before any ended: the published scheduler's
PREBLE_STEP_S, PREBLE_PROMPT_TOKEN_S = 0.0165, 1.52e-5  # its profile, of the engines here
REPORT_EVERY_S = 0.05  # how often llm-d reads an engine's metrics, by its default
LLM_D_PREFIX, LLM_D_QUEUE, LLM_D_MEMORY = 3.0, 2.0, 2.0


class EngineReport(NamedTuple):
    """What an engine's metrics say of it."""

    waiting: int
    """requests that it has not begun"""
    used_blocks: int
    """of its cache, by requests that run"""


class LlmD(Policy):
    """The greatest weighted sum of three scores, each from 0 to 1: prefix 3, queue 2, memory 2.

    The weights of llm-d's guide to precise prefix-cache-aware routing (precise-prefix-cache-scorer,
    queue-scorer and kv-cache-utilization-scorer of its endpoint picker). Prefix: the overlap, from
    the shortest to the longest among the workers. Queue: requests that wait there, from the longest
    to the shortest queue. Memory: the share of the cache that is free. Both are as each engine
    reported them last, every REPORT_EVERY_S. Engines that never did: requests in flight, and the
    blocks that these take, of the most in use anywhere where a worker's blocks are not known.
    """

    def __init__(
        self,
        prefix: float = LLM_D_PREFIX,
        queue: float = LLM_D_QUEUE,
        memory: float = LLM_D_MEMORY,
    ) -> None:
        self._weights = prefix, queue, memory
        self._blocks: dict[int, int] = {}
        self._worker_ids: dict[int, int] = {}
        self._reports: Mapping[int, EngineReport] = {}

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        self._blocks[number] = entry.total_kv_blocks or 0
        self._worker_ids[number] = entry.worker_id

    def on_worker_gone(self, number: int) -> None:
        self._blocks.pop(number, None)
        self._worker_ids.pop(number, None)

    def on_reports(self, reports: Mapping[int, EngineReport]) -> None:
        """What the engines say now, by worker id."""
        self._reports = reports

    def score(self, candidates: Candidates) -> Floats:
        eligible = candidates.eligible
        count = len(eligible)
        overlaps = np.zeros(count) if candidates.overlaps is None else candidates.overlaps
        prefix = _scaled(np.asarray(overlaps, np.float64), eligible, default=0.0)
        requests = candidates.active_requests.astype(np.float64)
        used = np.array(candidates.slots.active_blocks()[:count], np.float64)
        for number, worker_id in self._worker_ids.items():
            report = self._reports.get(worker_id)
            if report is not None and number < count:
                requests[number], used[number] = report
        queue = 1.0 - _scaled(requests, eligible, default=0.0)
        reported = np.array([self._blocks.get(number, 0) for number in range(count)], np.float64)
        total = np.where(reported > 0, reported, max(1.0, float(used.max(initial=1.0))))
        memory = 1.0 - np.minimum(1.0, used / total)
        of_prefix, of_queue, of_memory = self._weights
        scores = of_prefix * prefix + of_queue * queue + of_memory * memory
        return np.where(eligible, -scores, np.inf)


class EngineReports:
    """Gives policies what the engines of a simulation report, every REPORT_EVERY_S."""

    def __init__(self, fleet: VirtualFleet, workers: int, policies: Sequence[LlmD]) -> None:
        self._fleet, self._workers, self._policies = fleet, workers, policies
        self.next_time = 0.0

    def act(self, now: float) -> None:
        """Report, if it is time. The engines are at `now`."""
        if now < self.next_time:
            return
        self.next_time = now + REPORT_EVERY_S
        fleet, ranks = self._fleet, range(self._fleet.config.dp_size)
        reports = {
            worker: EngineReport(
                fleet.queues(worker)[0], sum(fleet.pools(worker, rank)[0] for rank in ranks)
            )
            for worker in range(self._workers)
        }
        for policy in self._policies:
            policy.on_reports(reports)


class Preble(Policy):
    """Exploit a long cached prefix, else explore by the cost of load and of the prompt itself.

    E2 of Preble (Srivatsa et al., ICLR 2025, arXiv 2407.00023) and its published scheduler: where
    more of the prompt is cached than is not, the request goes to one of the workers with the
    longest match, unless the load there is above PREBLE_BALANCE times the least; else to the least
    sum of load and of the time that this prompt would compute. A worker's load is the computing of
    the last three minutes and, for each request from when it is sent to its end, the decoding of a
    usual answer: the median length of late ones times the worker's median time a token. Computing
    is by a profile, as there. What is evicted for a prompt is left out: routers do not know it.
    """

    def __init__(self, balance: float = PREBLE_BALANCE) -> None:
        self._balance = balance
        self._recent: deque[tuple[float, int, float]] = deque()  # time, worker number, seconds
        self._computing: dict[int, float] = {}  # seconds in the window by worker number
        self._running: dict[str, tuple[int, float | None]] = {}  # worker number, first token
        self._active: Counter[int] = Counter()
        self._lengths: deque[int] = deque([PREBLE_ANSWER_TOKENS], PREBLE_ANSWERS)
        self._usual_tokens: float = PREBLE_ANSWER_TOKENS
        self._token_s: dict[int, deque[float]] = {}  # of a worker's late answers
        self._usual_token_s: dict[int, float] = {}

    def score(self, candidates: Candidates) -> Floats:
        eligible = candidates.eligible
        self._forget(candidates.now - PREBLE_WINDOW_S)
        load = np.array([self.load_s(number) for number in range(len(eligible))])
        uncached = candidates.uncached_tokens().astype(np.float64)
        own = PREBLE_STEP_S + PREBLE_PROMPT_TOKEN_S * uncached
        costs = np.where(eligible, load + own, np.inf)
        if not eligible.any():
            return costs
        least = float(uncached[eligible].min())
        if candidates.isl - least <= least:
            return costs
        longest = eligible & (uncached == least)
        whole = PREBLE_STEP_S + PREBLE_PROMPT_TOKEN_S * candidates.isl
        balanced = longest & (load <= self._balance * float(load[eligible].min()) + whole)
        return np.where(balanced, load, np.inf) if balanced.any() else costs

    def load_s(self, number: int) -> float:
        """Seconds that a worker is charged with, by what was added or forgotten last."""
        answer_s = self._usual_tokens * self._usual_token_s.get(number, PREBLE_TOKEN_S)
        return self._computing.get(number, 0.0) + self._active[number] * answer_s

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        self._running[request_id] = number, None
        self._active[number] += 1
        seconds = PREBLE_STEP_S + PREBLE_PROMPT_TOKEN_S * float(
            candidates.uncached_tokens()[number]
        )
        self._recent.append((candidates.now, number, seconds))
        self._computing[number] = self._computing.get(number, 0.0) + seconds

    def on_first_token(self, request_id: str, now: float) -> None:
        if request_id in self._running:
            self._running[request_id] = self._running[request_id][0], now

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        number, first_at = self._running.pop(request_id, (-1, None))
        if number < 0:
            return
        self._active[number] -= 1
        if output_tokens:
            self._lengths.append(output_tokens)
            self._usual_tokens = median(self._lengths)
            if output_tokens > 1 and first_at is not None:
                late = self._token_s.setdefault(number, deque([PREBLE_TOKEN_S], PREBLE_ANSWERS))
                late.append((now - first_at) / (output_tokens - 1))
                self._usual_token_s[number] = median(late)

    def on_worker_gone(self, number: int) -> None:
        self._recent = deque(each for each in self._recent if each[1] != number)
        self._running = {key: each for key, each in self._running.items() if each[0] != number}
        for known in (self._computing, self._token_s, self._usual_token_s, self._active):
            known.pop(number, None)

    def _forget(self, before: float) -> None:
        while self._recent and self._recent[0][0] < before:
            _, number, seconds = self._recent.popleft()
            self._computing[number] -= seconds


def _scaled(values: Floats, eligible: Mask, *, default: float) -> Floats:
    """From 0, the least among the eligible, to 1, the greatest; all `default` if they are equal."""
    low = float(values[eligible].min(initial=np.inf))
    high = float(values[eligible].max(initial=-np.inf))
    if not high > low:
        return np.full(len(values), default)
    return (values - low) / (high - low)
