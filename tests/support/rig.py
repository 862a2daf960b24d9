"""The request path on loopback: scripted engines, the real monitor, dispatcher and gRPC service."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
from grpc import aio
from support.calls import messages_of
from support.fake_engine import FakeEngine
from support.fake_router import LedgerRouter
from support.polling import until

from dynamo_router.base.clock import Clock, SystemClock
from dynamo_router.router.admission import Admission
from dynamo_router.router.decider import Decider
from dynamo_router.server.dispatch.dispatch import Dispatcher
from dynamo_router.server.dispatch.observers import DispatchObserver
from dynamo_router.server.dispatch.request import NO_TRACE, Tracing
from dynamo_router.server.request_limits import DispatchLimits, RequestLimits
from dynamo_router.server.services.trtllm_service import TrtllmService
from dynamo_router.transport.grpc_methods import served_plainly
from dynamo_router.transport.http2 import Http2Server, ServerLimits
from dynamo_router.workers.channels import ConnectionPolicy
from dynamo_router.workers.health import HealthMonitor
from dynamo_router.workers.health_tracker import HealthPolicy
from dynamo_router.workers.outliers import OutlierPolicy
from dynamo_router.workers.registry import WorkerRegistry, WorkerState
from dynamo_router.workers.trtllm_proto import SERVICE, pb

BLOCK = 64
RARE_PROBES = HealthPolicy(probe_interval_s=60, retry_first_s=0.02, retry_most_s=0.1)


class Rig:
    """Engines behind a router. `call(request)` is a client's Generate; `stub` has the rest."""

    def __init__(
        self,
        *engines: FakeEngine,
        policy: HealthPolicy = RARE_PROBES,
        observer: DispatchObserver | None = None,
        outliers: OutlierPolicy | None = None,
        connection: ConnectionPolicy | None = None,
        admission: Admission | None = None,
        limits: RequestLimits | None = None,
        max_attempts: int = 3,
        silence_s: float | None = None,
        tracing: Tracing = NO_TRACE,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.engines = list(engines)
        self.registry = WorkerRegistry()
        self.router = LedgerRouter(self.registry)
        self._policy, self._observer, self._admission = policy, observer, admission
        self.limits = DispatchLimits(limits or RequestLimits(), max_attempts, silence_s)
        self._outliers, self._connection, self._tracing = outliers, connection, tracing
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Rig":
        stack, clock = self._stack, self._clock
        for engine in self.engines:
            await stack.enter_async_context(engine)
        self.monitor = HealthMonitor(
            self.registry,
            clock,
            block_size=BLOCK,
            policy=self._policy,
            outliers=self._outliers,
            connection=self._connection,
        )
        stack.push_async_callback(self.monitor.close)
        decider = Decider(self.router, self._admission)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher(
            decider,
            self.monitor,
            clock,
            self.limits,
            observer=self._observer,
            tracing=self._tracing,
        )
        self.dispatcher.start()
        stack.push_async_callback(self.dispatcher.close)
        service = TrtllmService(self.dispatcher, self.monitor)
        self.server = Http2Server(ServerLimits())
        port = self.server.bind("127.0.0.1", 0)
        methods = service.methods.items()
        await self.server.start({path: served_plainly(method) for path, method in methods})
        stack.push_async_callback(self.server.stop, 0.0)
        self.channel = aio.insecure_channel(f"127.0.0.1:{port}")
        stack.push_async_callback(self.channel.close)
        self._generate = self.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        for engine in self.engines:
            self.monitor.add(engine.url)
        await until(lambda: all(e.state is not WorkerState.CONNECTING for e in self.entries))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def entries(self) -> list[Any]:
        return self.registry.entries()

    def worker_id(self, engine: FakeEngine) -> int:
        """The id an engine is registered under."""
        (entry,) = [e for e in self.entries if e.address == engine.address]
        return int(entry.worker_id)

    def call(self, request: Any, **more: Any) -> Any:
        body = request if isinstance(request, bytes) else request.SerializeToString()
        return self._generate(body, **more)

    async def answers(self, request: Any, **more: Any) -> list[Any]:
        """Every message of a Generate, decoded."""
        messages = await messages_of(self.call(request, **more))
        return [pb.GenerateResponse.FromString(message) for message in messages]

    async def refusal(self, request: Any, **more: Any) -> tuple[grpc.StatusCode, str]:
        """The status of a Generate that fails."""
        try:
            answers = await self.answers(request, **more)
        except aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"it was answered: {answers}")

    async def unary(self, method: str, request: Any, response: Any) -> Any:
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", None, None)
        return response.FromString(await call(request.SerializeToString()))

    def idle(self) -> bool:
        """Nothing is booked and nothing is in flight."""
        return not self.router.booked and not self.dispatcher.in_flight

    async def settled(self) -> None:
        await until(self.idle)

    async def running(self, engine: FakeEngine, count: int = 1) -> None:
        await until(lambda: len(engine.requests) >= count)


async def first(call: Any) -> Any:
    """The first message of a call."""
    return pb.GenerateResponse.FromString(await asyncio.wait_for(call.read(), 60))
