"""Dashboard: the page's data, read where it is kept, each part within a share of the time."""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ...base.clock import Clock
from ...indexer.hashing import Integers
from ...router.kv_router import KvRouter
from ...router.policy import Shadow
from ...router.prompt import Prompt
from ..dispatch import DispatchObserver, Request
from ..loop_share import answer_share, finish_in_turns
from .cache_map import CacheMap
from .history import PoolHistory
from .incidents import Incidents
from .receipts import Receipts, explanation_shown
from .request_journal import RequestJournal, in_flight_shown
from .worker_table import WorkerTable

MOST_REQUESTS = 250
"""Most rows of one answer; a page that asks each second misses some beyond that, and says so."""

Tokenize = Callable[[str], Awaitable[Integers]]


class Known(NamedTuple):
    """How far a page has read: numbers of the newest request, incident and version of workers."""

    requests: int = 0
    incidents: int = 0
    workers: int = 0


def shadow_shown(shadow: Shadow) -> dict[str, Any]:
    """What the policy that is only compared would have done, since the start of this process."""
    seconds = {"sooner_s": shadow.sooner_s, "later_s": shadow.later_s}
    return {"policy": shadow.name, **shadow.outcomes, **seconds}


class Dashboard:
    """What a KvRouter and its dispatcher did lately.

    `observer` is a journal before the one that is given; `in_flight` are the requests in flight.
    `tokenize`, where there is a tokenizer, lets people ask about texts. Close it in the end.
    """

    def __init__(
        self,
        router: KvRouter,
        clock: Clock,
        in_flight: Callable[[], Iterable[Request]],
        observer: DispatchObserver,
        tokenize: Tokenize | None = None,
        *,
        counts: Callable[[], Sequence[int]],
        load: Callable[[], tuple[int, int]],
        model: Callable[[], str] = str,
    ) -> None:
        """`counts` are those of RequestMetrics; `load`: how many requests are in flight, and how
        many wait for admission; `model`: the name of the one that the workers run, empty while
        that is not known."""
        self._router = router
        self.model = model
        self.counts, self._load = counts, load
        self.history = PoolHistory(self)
        self._now = clock.now
        self._in_flight = in_flight
        self._process = secrets.token_hex(4)
        self.incidents = Incidents(router.registry, clock)
        self.receipts = Receipts(router, clock)
        self._workers = WorkerTable(router, clock)
        self._caches = CacheMap(router.index, clock)
        self._answers = answer_share()
        self.observer = RequestJournal(clock, observer, self.incidents)
        self.tokenize = tokenize

    def close(self) -> None:
        """Idempotent."""
        self.incidents.close()

    @property
    def _takes_requests(self) -> bool:
        return bool(self._router.registry.eligible(self._now()).any())

    def gauges(self) -> list[int]:
        """In flight and queued requests; ranks that take requests, ranks; KV blocks that requests
        in flight have of those that there are, where an engine reports how many it has."""
        router, registry = self._router, self._router.registry
        takes, blocks = registry.eligible(self._now()), registry.kv_blocks
        ranks = [number for number, _ in registry.numbered()]
        known = blocks > 0
        used = int(router.slots.active_blocks()[: len(known)][known].sum())
        return [
            *self._load(),
            int(takes[ranks].sum()),
            len(ranks),
            used,
            int(blocks[known].sum()),
        ]

    async def state(self, known: Known, process: str, health: dict[str, Any]) -> dict[str, Any]:
        """All that is new to a page that has read so far, from the process that it names."""
        journal = self.observer
        if process != self._process:
            known = Known()
        config = self._router.config
        requests, last = journal.since(known.requests, MOST_REQUESTS), journal.last
        workers = await self._workers.since(known.workers)
        receipts, bounds = self.receipts, self.receipts.bounds
        return {
            "process": self._process,
            "now": self._now(),
            "model": self.model(),
            "down_since": None if self._takes_requests else self.incidents.down_since,
            "last_error": None if (error := self.incidents.last_error) is None else asdict(error),
            "mode": config.mode,
            "policy": config.policy_name if config.mode == "kv" else config.mode,
            "shadow": None if (shadow := self._router.shadow) is None else shadow_shown(shadow),
            "block_size": config.block_size,
            "reads_text": self.tokenize is not None,
            "health": health,
            "workers": workers,
            "in_flight": in_flight_shown(self._in_flight()),
            "last_request": last,
            "missed_requests": max(0, last - known.requests - len(requests)),
            "requests": [
                {
                    **each._asdict(),
                    "has_receipt": each.request_id in receipts,
                    "bound": None
                    if (found := bounds.of(each.request_id)) is None
                    else found._asdict(),
                }
                for each in requests
            ],
            "last_incident": self.incidents.last,
            "incidents": [asdict(each) for each in self.incidents.since(known.incidents)],
        }

    def caches(self) -> dict[str, Any]:
        """Who holds what."""
        return self._caches.read()

    async def receipt(self, request_id: str) -> dict[str, Any] | None:
        """Why a recent request went where it did; None if that was not kept."""
        return await self.receipts.receipt(request_id)

    async def what_if(self, prompt: Prompt) -> dict[str, Any]:
        """What would be decided for a prompt now. Books nothing."""
        explanation = await finish_in_turns(self._router.explain_steps(prompt), self._answers)
        return explanation_shown(explanation)
