"""Calls that any worker can answer and that book nothing: Embed, GetTokenizer, and what engines
over HTTP have beside generations."""

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from ...base.clock import Clock
from ...base.errors import NoWorkersError, StatusCode
from ...workers.channels import Metadata
from ...workers.dialects import AnyJson, EngineClient, ForwardingClient
from ...workers.failures import EngineCallError, Origin, judge
from ...workers.health import HealthMonitor
from ...workers.trtllm_proto import SERVICE
from .observers import DispatchObserver, OtherCall
from .request import NO_TRACE, CallTrace, Tracing
from .retries import FailedAttempt, FailedAttempts
from .status import NO_WORKER, status_of

Respond = Callable[[bytes], Awaitable[None]]
Carry = Callable[[EngineClient], Awaitable[None]]
"""Has a call carried to a worker, up to its end."""
Call = Callable[[EngineClient, float | None, Metadata, Respond], Awaitable[None]]


class PlainCalls:
    """Each call goes to a ready worker in its turn, and to another one if that fails.

    Broken connections are held against a worker. What it says of such a call is not: it may serve
    Generate well and not know this method.
    """

    def __init__(
        self,
        monitor: HealthMonitor,
        clock: Clock,
        observer: DispatchObserver,
        max_attempts: int,
        tracing: Tracing = NO_TRACE,
    ) -> None:
        self._monitor = monitor
        self._now = clock.now
        self._observer = observer
        self._tracing = tracing
        self.max_attempts = max_attempts
        self._turn = itertools.count()
        self.in_flight = 0
        self._running: Counter[int] = Counter()  # by worker

    async def embed(self, request: bytes, timeout: float | None, metadata: Metadata = ()) -> bytes:
        """The answer to an EmbedRequest. Raises as Dispatcher.generate does."""
        answers: list[bytes] = []

        async def call(
            client: EngineClient, left: float | None, metadata: Metadata, respond: Respond
        ) -> None:
            await respond(await client.embed(request, timeout=left, metadata=metadata))

        async def keep(answer: bytes) -> None:
            answers.append(answer)

        await self._serve("Embed", call, keep, timeout, metadata)
        return answers[0]

    async def forward(
        self, path: str, body: AnyJson, timeout: float | None, metadata: Metadata = ()
    ) -> bytes:
        """The answer to what is posted to a path of engines that have others than we know;
        EngineCallError UNIMPLEMENTED where there are none. Raises as Dispatcher.generate does."""
        answers: list[bytes] = []

        async def call(
            client: EngineClient, left: float | None, metadata: Metadata, respond: Respond
        ) -> None:
            if not isinstance(client, ForwardingClient):
                text = f"an engine that is called by {client.dialect} has no {path}"
                raise EngineCallError(Origin.ENGINE, StatusCode.UNIMPLEMENTED, text)
            await respond(await client.forward(path, body, timeout=left, metadata=metadata))

        async def keep(answer: bytes) -> None:
            answers.append(answer)

        await self._serve(path, call, keep, timeout, metadata, ForwardingClient)
        return answers[0]

    async def carried(self, path: str, carry: Carry, allowed: Collection[int]) -> None:
        """Have a call carried by a proxy to the worker of this turn, one of `allowed`; empty: of
        all. NoWorkersError if none is ready."""

        async def call(
            client: EngineClient, left: float | None, metadata: Metadata, respond: Respond
        ) -> None:
            await carry(client)

        async def nothing(answer: bytes) -> None:
            raise AssertionError("what a proxy carries does not come here")

        await self._serve(path, call, nothing, None, (), allowed=allowed)

    async def get_tokenizer(
        self, request: bytes, respond: Respond, timeout: float | None, metadata: Metadata = ()
    ) -> None:
        """Pass a tokenizer on, piece by piece; once the first one is, there is no retry."""

        async def call(
            client: EngineClient, left: float | None, metadata: Metadata, respond: Respond
        ) -> None:
            stream = client.get_tokenizer(request, timeout=left, metadata=metadata)
            try:
                async for message in stream:
                    await respond(message)
            finally:
                stream.cancel()  # nothing, if it has ended

        await self._serve("GetTokenizer", call, respond, timeout, metadata)

    def requests_of(self, worker_id: int) -> int:
        """How many run on a worker now."""
        return self._running[worker_id]

    async def _serve(
        self,
        method: str,
        call: Call,
        respond: Respond,
        timeout: float | None,
        metadata: Metadata,
        kind: type = object,
        allowed: Collection[int] = (),
    ) -> None:
        """Clients of this kind go first."""
        code, details = StatusCode.OK, ""
        self.in_flight += 1
        trace = self._tracing.begin_call(method, metadata)
        try:
            await self._try_workers(call, respond, timeout, metadata, trace, kind, allowed)
        except BaseException as error:
            code, details = status_of(error)
            raise
        finally:
            self.in_flight -= 1
            route = method if method.startswith("/") else f"/{SERVICE}/{method}"
            self._observer.on_end(None, code, OtherCall(route, details=details))
            trace.ended(code, details)

    async def _try_workers(
        self,
        call: Call,
        respond: Respond,
        timeout: float | None,
        metadata: Metadata,
        trace: CallTrace,
        kind: type,
        allowed: Collection[int],
    ) -> None:
        failures, began, passed = FailedAttempts(self.max_attempts), self._now(), 0
        # One turn a call: if retries took turns too, one that fails could be always the first.
        turn = next(self._turn)

        async def count(message: bytes) -> None:
            nonlocal passed
            passed += 1
            await respond(message)

        while True:
            ready = [w for w in self._monitor.ready_workers() if w[0] not in failures.worker_ids]
            if allowed:
                ready = [worker for worker in ready if worker[0] in allowed]
            if not ready:
                raise NoWorkersError(NO_WORKER)
            ready = [worker for worker in ready if isinstance(worker[1], kind)] or ready
            worker_id, client = ready[turn % len(ready)]
            sent = self._now()
            left = None if timeout is None else began + timeout - sent
            self._running[worker_id] += 1
            sent_metadata = trace.sent(worker_id, client.address, len(failures) + 1, metadata)
            failure: FailedAttempt | None = None
            try:
                await call(client, left, sent_metadata, count)
                return
            except EngineCallError as error:
                origin = error.origin
                if error.code() is StatusCode.DEADLINE_EXCEEDED and timeout is not None:
                    origin = Origin.DEADLINE
                verdict = judge(origin, error.code(), started=passed > 0)
                self._monitor.reports.noticed(worker_id, verdict)
                failure = FailedAttempt(worker_id, origin, verdict, error.details())
                failures.add(failure)
                others = {w for w, _ in self._monitor.ready_workers()} - failures.worker_ids
                if not failures.may_go_on or not others:
                    raise
            finally:
                trace.attempt_ended(passed, failure)
                self._running[worker_id] -= 1
                if not self._running[worker_id]:
                    del self._running[worker_id]
