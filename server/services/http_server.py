"""The HTTP server: /metrics, /health, /live, /workers, /overlaps, /busy_threshold, and routes that
others bring: those of the admin, those of the dashboard."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from aiohttp import web

from ...base.errors import RouterError
from ...base.identity import WorkerWithDpRank
from ...indexer.prefix_index import TierOverlap
from ...indexer.wire import TIERS
from ...router.kv_router import KvRouter
from ...router.views import WorkerView
from ...transport.http_site import HttpSite, json_response
from ..access import Listener, Security
from ..dispatch import RequestReader
from ..loop_share import answer_share, in_turns
from ..metrics import MetricsPage
from .connections import HttpConnections, plan_connections

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Health = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether requests can be served now, and more on it for people."""

WRITTEN_AT_ONCE = 64 << 10
"""Bytes of a page: the kernel copies them while the event loop waits, over loopback twice."""

log = structlog.get_logger(__name__)


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


class HttpServer:
    """Answers over HTTP, in JSON but for /metrics, from `start` until `close`."""

    def __init__(
        self,
        router: KvRouter,
        metrics: MetricsPage,
        health: Health,
        *,
        security: Security,
        reader: RequestReader,
        workers: int = 0,
        more_routes: Sequence[web.RouteDef] = (),
        change_limits: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
        fronts: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    ) -> None:
        """`change_limits` changes busy thresholds, here if it is not given; `fronts` tells of the
        processes of this router, for /health."""
        self._security = security
        self._reader = reader
        most = plan_connections(reader.limits, workers).http
        limits = reader.limits
        self.connections = HttpConnections(
            most, limits.connection_idle_s, reader.hits, limits.max_connection_share
        )
        self._router = router
        self._metrics = metrics
        self._health = health
        self._change_limits, self._fronts = change_limits, fronts
        self._decoder = msgspec.json.Decoder(_OverlapsBody)
        self._share = answer_share()
        self._guard = security.http_guard()
        self.admin: Listener | None = None
        """where admin routes are served, if that is another address"""
        self._site = HttpSite(
            [
                web.get("/metrics", self._on_metrics),
                web.get("/health", self._on_health),
                web.get("/live", self._on_live),
                web.get("/workers", self._on_workers),
                web.post("/overlaps", self._on_overlaps),
                web.get("/busy_threshold", self._on_thresholds),
                web.post("/busy_threshold", self._on_new_thresholds),
                *more_routes,
            ],
            max_body_bytes=reader.limits.max_body_bytes,
            wrap=self.connections.bounded,
            middlewares=[self._errors_as_json, self._guard.middleware],
        )

    @property
    def port(self) -> int:
        return self._site.port

    @property
    def open(self) -> int:
        """Connections."""
        return self._site.connections

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen; port 0 takes a free one. ConfigError if it, or the admin port, cannot be had.
        `shared`: with other processes of this user."""
        tls = self._security.server_tls
        context = None if tls is None else tls.ssl_context()
        await self._site.start(host, port, key="http_port", tls=context, shared=shared)
        guard = self._guard
        guard.admin, apart = self._security.admin_listener(self.port)
        if apart:
            taken = await self._site.start(
                *guard.admin, key="admin_port", tls=context, shared=shared
            )
            guard.admin = self.admin = Listener(guard.admin.host, taken)

    async def close(self) -> None:
        """Stop listening and drop what is open. Idempotent."""
        await self._site.close()

    async def _on_metrics(self, request: web.Request) -> web.StreamResponse:
        asked = request.headers
        page = await self._metrics.render(asked.get("Accept", ""), asked.get("Accept-Encoding", ""))
        headers = {"Content-Type": page.content_type, "Vary": "Accept, Accept-Encoding"}
        if page.gzip:
            headers["Content-Encoding"] = "gzip"
        if request.method == "HEAD" or len(page.body) <= WRITTEN_AT_ONCE:
            return web.Response(body=page.body, headers=headers)
        answer = web.StreamResponse(headers=headers)
        answer.content_length = len(page.body)
        await answer.prepare(request)
        body = memoryview(page.body)
        for begin in range(0, len(body), WRITTEN_AT_ONCE):
            await answer.write(body[begin : begin + WRITTEN_AT_ONCE])
            await asyncio.sleep(0)
        return answer

    async def _on_health(self, request: web.Request) -> web.Response:
        ready, more = self._health()
        if self._fronts is not None:
            more |= await self._fronts()
        return json_response(
            {"status": "ready" if ready else "not ready", **more}, 200 if ready else 503
        )

    async def _on_live(self, request: web.Request) -> web.Response:
        return json_response({"status": "live"})

    async def _on_workers(self, request: web.Request) -> web.Response:
        workers: list[dict[str, Any]] = []
        async for views in in_turns(self._router.workers_in_steps(), self._share):
            workers += map(_worker, views)
        return json_response({"workers": workers})

    async def _on_overlaps(self, request: web.Request) -> web.Response:
        try:
            tokens, rest = await self._reader.json_tokens(await request.read(), b"token_ids")
            body = self._decoder.decode(rest)
            prompt = await self._reader.prompt(tokens, body.lora_name, body.cache_namespace)
            overlaps = self._router.tier_overlaps if body.by_tier else self._router.overlaps
            found: Mapping[WorkerWithDpRank, TierOverlap | int] = overlaps(prompt)
        except msgspec.DecodeError as error:
            return json_response({"error": f"bad body: {error}"}, 400)
        except RouterError as error:
            return json_response({"error": str(error)}, 400)
        return json_response({_name(worker): _blocks(found[worker]) for worker in sorted(found)})

    async def _on_thresholds(self, request: web.Request) -> web.Response:
        config = self._router.limits.config
        return json_response(
            {name: getattr(config, name) for name in _BusyThresholds.__struct_fields__}
        )

    async def _on_new_thresholds(self, request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read(), type=_BusyThresholds)
            changed = msgspec.to_builtins(body)
            if self._change_limits is not None:
                await self._change_limits(changed)
            else:
                self._router.limits.change(**changed)
        except msgspec.DecodeError as error:
            return json_response({"error": f"bad body: {error}"}, 400)
        except RouterError as error:
            return json_response({"error": str(error)}, 400)
        return await self._on_thresholds(request)

    @property
    def _errors_as_json(self) -> Any:
        @web.middleware
        async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                if error.status < 400:
                    raise
                if isinstance(error, web.HTTPRequestEntityTooLarge):
                    self._reader.hits.hit("max_body_bytes")
                answer = json_response({"error": error.text or error.reason}, error.status)
                for name in ("Allow", "WWW-Authenticate"):
                    if name in error.headers:
                        answer.headers[name] = error.headers[name]
                return answer
            except Exception:
                log.exception("HTTP request failed", path=request.path)
                return json_response({"error": "internal error"}, 500)

        return errors_as_json


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
        "lower_tier_blocks": dict(zip(TIERS[1:], view.lower_tier_blocks, strict=True)),
    }


def _blocks(overlap: TierOverlap | int) -> dict[str, int] | int:
    return overlap if isinstance(overlap, int) else overlap._asdict()


def _name(worker: WorkerWithDpRank) -> str:
    """A worker as a JSON key: its id, and the rank where it is not 0."""
    return f"{worker.worker_id}/{worker.dp_rank}" if worker.dp_rank else str(worker.worker_id)
