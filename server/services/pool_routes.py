"""What is to be seen of pools over HTTP: /workers of all, /overlaps and /busy_threshold of one."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from ...base.errors import UNREADABLE, CapacityError, RouterError
from ...base.identity import WorkerWithDpRank
from ...indexer.prefix_index import TierOverlap
from ...indexer.wire import TIERS
from ...router.kv_router import KvRouter
from ...router.views import WorkerView
from ...transport.http1 import HttpCall, HttpError, Routes, answer_json
from ..dispatch import RequestReader
from ..loop_share import answer_share, in_turns
from ..metrics import Labels


class _OverlapsBody(msgspec.Struct, forbid_unknown_fields=True):
    token_ids: list[int]
    lora_name: str | None = None
    cache_namespace: str | None = None
    by_tier: bool = False


class _BusyThresholds(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What may be changed while the router runs; None switches a threshold off."""

    active_decode_blocks_threshold: float | None | msgspec.UnsetType = msgspec.UNSET
    active_prefill_tokens_threshold: int | None | msgspec.UnsetType = msgspec.UNSET
    active_prefill_tokens_threshold_frac: float | None | msgspec.UnsetType = msgspec.UNSET


_OVERLAPS = msgspec.json.Decoder(_OverlapsBody)
_THRESHOLDS = msgspec.json.Decoder(_BusyThresholds)


LabelledRouters = Callable[[], Iterable[tuple[Labels, KvRouter]]]


class WorkersRoute:
    """The workers of all pools, each with the labels of its pool."""

    def __init__(self, routers: LabelledRouters) -> None:
        self._routers = routers
        self._share = answer_share()

    @property
    def routes(self) -> Routes:
        return {"GET /workers": self._on_workers}

    async def _on_workers(self, call: HttpCall) -> None:
        workers: list[dict[str, Any]] = []
        for labels, router in self._routers():
            async for views in in_turns(router.workers_in_steps(), self._share):
                workers += [{**_worker(view), **labels} for view in views]
        await answer_json(call, {"workers": workers})


class PoolRoutes:
    """The routes of one KvRouter."""

    def __init__(
        self,
        router: KvRouter,
        reader: RequestReader,
        change_limits: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """`change_limits` changes busy thresholds."""
        self._router, self._reader, self._change_limits = router, reader, change_limits

    @property
    def routes(self) -> Routes:
        return {
            "POST /overlaps": self._on_overlaps,
            "GET /busy_threshold": self._on_thresholds,
            "POST /busy_threshold": self._on_new_thresholds,
        }

    async def _on_overlaps(self, call: HttpCall) -> None:
        await call.client.unless_gone(self._answer_overlaps(call))

    async def _answer_overlaps(self, call: HttpCall) -> None:
        try:
            tokens, rest = await self._reader.json_tokens(call.body, b"token_ids")
            body = _OVERLAPS.decode(rest)
            prompt = await self._reader.prompt(tokens, body.lora_name, body.cache_namespace)
            overlaps = self._router.tier_overlaps if body.by_tier else self._router.overlaps
            found: Mapping[WorkerWithDpRank, TierOverlap | int] = overlaps(prompt)
        except (*UNREADABLE, RouterError) as error:
            raise _bad_request(error) from None
        blocks = {_name(worker): _blocks(found[worker]) for worker in sorted(found)}
        await answer_json(call, blocks)

    async def _on_thresholds(self, call: HttpCall) -> None:
        config = self._router.limits.config
        names = _BusyThresholds.__struct_fields__
        await answer_json(call, {name: getattr(config, name) for name in names})

    async def _on_new_thresholds(self, call: HttpCall) -> None:
        try:
            body = _THRESHOLDS.decode(call.body)
            await self._change_limits(msgspec.to_builtins(body))
        except (*UNREADABLE, RouterError) as error:
            raise _bad_request(error) from None
        await self._on_thresholds(call)


def _bad_request(error: Exception) -> HttpError:
    if isinstance(error, CapacityError):
        return HttpError(429, str(error))
    is_json = not isinstance(error, msgspec.DecodeError)
    return HttpError(400, str(error) if is_json else f"bad body: {error}")


def _worker(view: WorkerView) -> dict[str, Any]:
    return {
        "worker_id": view.worker.worker_id,
        "dp_rank": view.worker.dp_rank,
        "address": view.address,
        "state": view.state,
        "reason": view.reason,
        "weight": view.weight,
        "dialect": view.dialect,
        "origin": view.origin,
        "indexed_blocks": view.indexed_blocks,
        "unindexed_blocks": view.unindexed_blocks,
        "active_blocks": view.active_blocks,
        "active_prefill_tokens": view.active_prefill_tokens,
        "active_requests": view.active_requests,
        "own_requests": view.own_requests,
        "sessions": view.sessions,
        "event_source": view.event_source or None,
        "event_source_state": view.event_source_state,
        "event_error": view.event_error or None,
        "lower_tier_blocks": dict(zip(TIERS[1:], view.lower_tier_blocks, strict=True)),
    }


def _blocks(overlap: TierOverlap | int) -> dict[str, int] | int:
    return overlap if isinstance(overlap, int) else overlap._asdict()


def _name(worker: WorkerWithDpRank) -> str:
    """A worker as a JSON key: its id, and the rank where it is not 0."""
    return f"{worker.worker_id}/{worker.dp_rank}" if worker.dp_rank else str(worker.worker_id)
