"""What the processes of one router do for each other: bookings, aborts, metrics, the dashboard."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ...base.errors import ConfigError
from ...router.kv_router import KvRouter
from ..access import Caller, Role
from ..admin import CacheClearing, Change, Reloader
from ..dashboard import (
    Overview,
    OverviewQuestion,
    PageData,
    PagedPool,
    ProcessOverview,
    ShownPool,
    merged_overview,
)
from ..dispatch import Dispatcher
from ..metrics import Family, FrontPages, MetricsPage, families_of
from ..replica_sync import ReplicaSync
from .siblings import Siblings

ABORT_TIMEOUT_S = 3.0
"""The engine is asked in that time."""


class ReplicaPool(Protocol):
    """A pool whose bookings other processes count."""

    @property
    def replicas(self) -> ReplicaSync | None: ...


def share_replicas(
    siblings: Siblings, router_id: str, pools: Callable[[], Iterable[ReplicaPool]]
) -> None:
    """Free what a sibling had booked as soon as its process ends. `router_id` is that of this
    process; the others' differ in the number at their end."""
    name = router_id.rpartition("-")[0]

    def forget(number: int) -> None:
        for pool in pools():
            if pool.replicas is not None:
                pool.replicas.forget(f"{name}-{number}")

    siblings.on_lost.append(forget)


def share_bookings(
    siblings: Siblings, router: KvRouter
) -> Callable[[str, str], Awaitable[bool]] | None:
    """Asks siblings to change a booking that this process does not know: what to do, and its name.
    False if none of them knows it. None without siblings."""
    if not siblings.others:
        return None
    actions: dict[str, Callable[[str], bool]]
    actions = {"free": router.free, "prefilled": router.mark_prefill_complete}

    async def here(asked: tuple[str, str]) -> bool:
        action, booking = asked
        return action in actions and actions[action](booking)

    siblings.answer("Booking", tuple[str, str], here)

    async def elsewhere(action: str, booking: str) -> bool:
        return bool(await siblings.first("Booking", (action, booking), bool, bool))

    return elsewhere


def share_aborts(
    siblings: Siblings, dispatcher: Dispatcher
) -> Callable[[str, Caller], Awaitable[tuple[bool, str] | None]] | None:
    """Asks siblings to stop a request that this process does not have: None if none of them has it.
    None without siblings."""
    if not siblings.others:
        return None

    async def here(asked: tuple[str, str]) -> tuple[bool, str] | None:
        request_id, caller = asked[0], Caller(asked[1])
        if not dispatcher.has(request_id, caller):
            return None
        return await dispatcher.abort(request_id, caller)

    siblings.answer("Abort", tuple[str, str], here)

    async def elsewhere(request_id: str, caller: Caller) -> tuple[bool, str] | None:
        asked = (request_id, caller.name)
        return await siblings.first("Abort", asked, tuple[bool, str], bool, ABORT_TIMEOUT_S)

    return elsewhere


def share_forgetting(
    siblings: Siblings, pools: Callable[[], Iterable[CacheClearing]]
) -> Callable[[Sequence[int]], Awaitable[None]]:
    """Has predictions of workers whose caches were cleared forgotten, here and at the siblings."""

    async def here(worker_ids: Sequence[int]) -> bool:
        for pool in pools():
            pool.forget(worker_ids)
        return True

    siblings.answer("Forget", list[int], here)

    async def everywhere(worker_ids: Sequence[int]) -> None:
        await here(worker_ids)
        await siblings.ask_all("Forget", list(worker_ids), bool)

    return everywhere


def share_metrics(
    siblings: Siblings, page: MetricsPage
) -> Callable[[], Awaitable[FrontPages]] | None:
    """Asks siblings for their metrics. None without siblings."""
    if not siblings.others:
        return None

    async def here(_: None) -> list[Family]:
        return await families_of(page.steps())

    siblings.answer("Metrics", type(None), here)

    async def elsewhere() -> FrontPages:
        found = await siblings.ask_all("Metrics", None, list[Family])
        return FrontPages(siblings.number, found)

    return elsewhere


def share_overview(
    siblings: Siblings, overview: Overview
) -> Callable[[OverviewQuestion], Awaitable[dict[str, Any]]]:
    """Reads what a dashboard shows of the whole router, from all processes that answer."""

    async def here(question: OverviewQuestion) -> ProcessOverview:
        return overview.read(question)

    siblings.answer("Overview", OverviewQuestion, here)

    async def everywhere(question: OverviewQuestion) -> dict[str, Any]:
        others = await siblings.ask_all("Overview", question, ProcessOverview)
        found = [each for each in others.values() if each is not None]
        missing = len(others) - len(found)
        return merged_overview([overview.read(question), *found], 1 + len(others), missing)

    return everywhere


class SharedReload:
    """Has the settings read again by all processes."""

    def __init__(self, reloader: Reloader | None, siblings: Siblings) -> None:
        self._reloader, self._siblings = reloader, siblings
        siblings.answer("Reload", type(None), self._answer)

    async def reload(self) -> list[Change]:
        """What changed. ConfigError if nothing could, or not in each process."""
        if self._reloader is None:
            raise ConfigError("there are no settings to be read again")
        changes = self._reloader.reload()
        answers = await self._siblings.ask_all("Reload", None, str)
        for number, failure in answers.items():
            if failure != "":
                text = "it does not answer" if failure is None else failure
                raise ConfigError(f"read again here, but not by front {number}: {text}")
        return changes

    async def _answer(self, _: None) -> str:
        if self._reloader is None:
            return "there are no settings to be read again"
        try:
            self._reloader.reload()
        except ConfigError as error:
            return str(error)
        return ""


class _PageQuestion(msgspec.Struct, array_like=True):
    page: str
    what: str
    asked: dict[str, str] = {}
    roles: list[str] = []
    changes: bool = True
    body: bytes = b""


class SharedPages:
    """Gives the pages of a dashboard the data of one process, so that they do not change with the
    process that a connection leads to: that of number 0, or their own while it does not answer."""

    def __init__(self, siblings: Siblings, pools: Callable[[], Sequence[ShownPool]]) -> None:
        """`pools` are those of this process."""
        self._siblings, self._pools = siblings, pools
        siblings.answer("Page", _PageQuestion, self._answer)

    def shown(self) -> Sequence[ShownPool]:
        """The pools, with the data that their pages are to read."""
        pools = self._pools()
        return [self._elsewhere(pool) for pool in pools] if self._siblings.number else pools

    def _elsewhere(self, pool: ShownPool) -> ShownPool:
        own = pool.page_data
        if own is None:
            return pool
        return PagedPool(_ElsewherePage(self._siblings, _key(pool), own), pool.summary)

    async def _answer(self, question: _PageQuestion) -> bytes:
        found = (pool.page_data for pool in self._pools() if _key(pool) == question.page)
        data = next(found, None)
        return b"" if data is None else msgspec.json.encode(await _data_for(data, question))


class _ElsewherePage(PageData):
    def __init__(self, siblings: Siblings, name: str, own: PageData) -> None:
        self._siblings, self._name, self._own = siblings, name, own

    async def state(
        self, asked: Mapping[str, str], roles: frozenset[Role], *, changes: bool = True
    ) -> dict[str, Any]:
        given = [role.value for role in roles]
        state: dict[str, Any] = await self._ask(
            "state", asked=dict(asked), roles=given, changes=changes
        )
        return state

    async def caches(self) -> dict[str, Any]:
        caches: dict[str, Any] = await self._ask("caches")
        return caches

    async def receipt(self, asked: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        status, receipt = await self._ask("receipt", asked=dict(asked))
        return status, receipt

    async def what_if(self, body: bytes) -> tuple[int, dict[str, Any]]:
        status, explanation = await self._ask("what_if", body=body)
        return status, explanation

    async def _ask(self, what: str, **more: Any) -> Any:
        question = _PageQuestion(self._name, what, **more)
        found = await self._siblings.ask(0, "Page", question, bytes)
        return await _data_for(self._own, question) if not found else msgspec.json.decode(found)


def _key(pool: ShownPool) -> str:
    return str(pool.summary.get("key", ""))


async def _data_for(data: PageData, question: _PageQuestion) -> Any:
    match question.what:
        case "state":
            roles = frozenset(map(Role, question.roles))
            return await data.state(question.asked, roles, changes=question.changes)
        case "caches":
            return await data.caches()
        case "receipt":
            return await data.receipt(question.asked)
        case _:
            return await data.what_if(question.body)
