"""Policies that others have published, from their formulas: baselines for a comparison.

A further one, LMetric, the router has itself.

Each knows what a router of its kind could know: the overlaps that this router's index tells, and
the load that its slots tell. None of them holds requests.
"""

from collections import deque

import numpy as np

from ...router.policy import Candidates, Floats, Mask, Policy
from ...workers.registry import WorkerEntry

PREBLE_WINDOW_S = 180.0  # of the load that a worker counts with; the paper's default
PREBLE_BALANCE = 1.5  # load over the least, above which a cached prefix is not followed
TOKENS_PER_OUTPUT = 1.0  # weight of a token to decode beside one to prefill, in Preble's load
LLM_D_PREFIX, LLM_D_QUEUE, LLM_D_MEMORY = 3.0, 2.0, 2.0


class LlmD(Policy):
    """The greatest weighted sum of three scores, each from 0 to 1: prefix 3, queue 2, memory 2.

    The weights of llm-d's guide to precise prefix-cache-aware routing (precise-prefix-cache-scorer,
    queue-scorer and kv-cache-utilization-scorer of its endpoint picker). Prefix: the overlap, from
    the shortest to the longest among the workers. Queue: requests, from the longest to the shortest
    queue; here those in flight, because a router does not hear which of them wait. Memory: the
    share of the cache that is free; where a worker never reported its blocks, of the most in use
    anywhere.
    """

    def __init__(
        self,
        prefix: float = LLM_D_PREFIX,
        queue: float = LLM_D_QUEUE,
        memory: float = LLM_D_MEMORY,
    ) -> None:
        self._weights = prefix, queue, memory
        self._blocks: dict[int, int] = {}

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        self._blocks[number] = entry.total_kv_blocks or 0

    def score(self, candidates: Candidates) -> Floats:
        eligible = candidates.eligible
        count = len(eligible)
        overlaps = np.zeros(count) if candidates.overlaps is None else candidates.overlaps
        prefix = _scaled(np.asarray(overlaps, np.float64), eligible, default=0.0)
        queue = 1.0 - _scaled(candidates.active_requests.astype(np.float64), eligible, default=0.0)
        used = np.asarray(candidates.slots.active_blocks(), np.float64)[:count]
        reported = np.array([self._blocks.get(number, 0) for number in range(count)], np.float64)
        total = np.where(reported > 0, reported, max(1.0, float(used.max(initial=1.0))))
        memory = 1.0 - np.minimum(1.0, used / total)
        of_prefix, of_queue, of_memory = self._weights
        scores = of_prefix * prefix + of_queue * queue + of_memory * memory
        return np.where(eligible, -scores, np.inf)


class Preble(Policy):
    """Exploit a long cached prefix, else explore by the cost of load and of the prompt itself.

    E2 of Preble (Srivatsa et al., ICLR 2025, arXiv 2407.00023): where more of the prompt is cached
    than is not, the request goes to one of the workers with the longest match, unless the load
    there is above PREBLE_BALANCE times the least; else to the least sum of the load of the last
    three minutes (tokens computed and decoded there) and the tokens this prompt would compute.
    The paper's third term, what is evicted for it, is left out: routers do not know it.
    """

    def __init__(self, balance: float = PREBLE_BALANCE) -> None:
        self._balance = balance
        self._recent: deque[tuple[float, int, float]] = deque()  # time, worker number, tokens
        self._load: dict[int, float] = {}
        self._running: dict[str, int] = {}  # worker number by request id

    def score(self, candidates: Candidates) -> Floats:
        eligible = candidates.eligible
        self._forget(candidates.now - PREBLE_WINDOW_S)
        load = np.array([self._load.get(number, 0.0) for number in range(len(eligible))])
        uncached = candidates.uncached_tokens().astype(np.float64)
        costs = np.where(eligible, load + uncached, np.inf)
        if not eligible.any():
            return costs
        least = float(uncached[eligible].min())
        if candidates.isl - least <= least:
            return costs
        longest = eligible & (uncached == least)
        balanced = longest & (load <= self._balance * float(load[eligible].min()) + candidates.isl)
        return np.where(balanced, load, np.inf) if balanced.any() else costs

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        self._running[request_id] = number
        self._add(candidates.now, number, float(candidates.uncached_tokens()[number]))

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        number = self._running.pop(request_id, None)
        if number is not None and output_tokens:
            self._add(now, number, TOKENS_PER_OUTPUT * output_tokens)

    def on_worker_gone(self, number: int) -> None:
        self._recent = deque(each for each in self._recent if each[1] != number)
        self._load.pop(number, None)
        self._running = {key: each for key, each in self._running.items() if each != number}

    def _add(self, now: float, number: int, tokens: float) -> None:
        self._recent.append((now, number, tokens))
        self._load[number] = self._load.get(number, 0.0) + tokens

    def _forget(self, before: float) -> None:
        while self._recent and self._recent[0][0] < before:
            _, number, tokens = self._recent.popleft()
            self._load[number] -= tokens


def _scaled(values: Floats, eligible: Mask, *, default: float) -> Floats:
    """From 0, the least among the eligible, to 1, the greatest; all `default` if they are equal."""
    low = float(values[eligible].min(initial=np.inf))
    high = float(values[eligible].max(initial=-np.inf))
    if not high > low:
        return np.full(len(values), default)
    return (values - low) / (high - low)
