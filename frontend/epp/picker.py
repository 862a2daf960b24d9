"""Picker: envoy.service.ext_proc.v3.ExternalProcessor in front of one pool.

Each call is one HTTP request of a client of Envoy's. The task of the call reads Envoy's messages
and answers those of the response; another one places the request, has it booked while Envoy
carries it, and sends what belongs to the request: so each direction has one writer.
"""

import asyncio
import secrets
from array import array
from collections.abc import AsyncIterator, Iterable

import numpy as np
import structlog
from prometheus_client.metrics_core import Metric

from ...base.account import current_account
from ...base.errors import NoWorkersError, RouterError, StatusCode
from ...base.request_record import RequestRecord, set_record
from ...router.admission import read_objectives
from ...router.affinity import read_session
from ...router.placement import Placement
from ...server.access import current_caller
from ...server.call_limits import PROCESSOR
from ...server.dispatch import (
    MAX_JSON_PARTS,
    Attempt,
    GenerateFacts,
    ReadRequest,
    Request,
    status_of,
)
from ...server.metrics import counters, gauges
from ...server.pool import WorkerPool
from ...server.server_parts import ServerParts
from ...server.services import read_metadata
from ...transport.grpc_methods import Method, Methods
from ...transport.http2 import PeerGoneError, ServerCall
from ...workers.dialects import EngineClient
from ..completions import CHAT_ROUTE, COMPLETIONS_ROUTE, MOST_JSON_PARTS
from ..engine_requests import ANSWER_S, CALL_S, TOKEN_S, PromptReader, Tokens
from ..openai import ApiError, error_answer, unknown_model
from ..origin import salt_of
from ..processor import ModelText, Tenant
from .carried_call import CarriedCall
from .config import PickerConfig
from .control_headers import DROPPED_REASON, Asked, read_control
from .endpoints import Endpoints
from .exchange import AnswerBegan, AnswerPart, Exchange, ExchangeError, Head, RequestEnded
from .objectives import ObjectiveView
from .requests import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    ChatBody,
    CompletionBody,
    pairing_facts,
    read_chat,
    read_completion,
    with_model,
)

OTHER_PATHS = "other"
"""Stands for the route of each path that no prompt comes by."""
_REASONS = {429: "rejected-saturated", 503: "rejected-no-endpoints", 504: "rejected-ttl-expired"}
PATH = f"/{PROCESSOR}/Process"

log = structlog.get_logger(__name__)


class Picker:
    """Answers Envoy's calls from one pool, on the event loop."""

    def __init__(
        self,
        parts: ServerParts,
        pool: WorkerPool,
        text: ModelText,
        config: PickerConfig,
        objectives: ObjectiveView | None = None,
    ) -> None:
        """`objectives`: those that requests may name, if they are watched."""
        self.objectives = objectives
        self.parts, self.pool, self.config = parts, pool, config
        self.prompts = PromptReader(text, pool.reader)
        self.endpoints = Endpoints(pool.router, config.endpoint_port)
        self.methods: Methods = {PATH: Method(self._process, streams=True)}
        self.ignored = self.moved = self.body_bytes = 0
        parts.metrics.add(self._collect)
        parts.answers.counts.expect_models((CHAT_ROUTE, COMPLETIONS_ROUTE), lambda: self.names)

    @property
    def names(self) -> list[str]:
        """Of the model: what clients call it, and what its engines do."""
        found = (self.config.model_id, self.pool.monitor.facts.model_id)
        return [name for name in dict.fromkeys(found) if name]

    async def _process(self, messages: AsyncIterator[bytes], call: ServerCall) -> None:
        stream = _PickedRequest(self, call)
        try:
            await stream.run(messages)
        except ExchangeError as error:
            await call.abort(error.code, str(error))
        except PeerGoneError:
            pass  # Envoy is gone, or has given the request up
        finally:
            await stream.close()

    def fallbacks(self, request: Request, attempt: Attempt) -> list[int]:
        """Workers that might have had it, the best one first."""
        found: list[int] = []
        placement = request.placement
        if placement.pinned is not None:
            return found
        taken = placement.excluded | {attempt.worker_id}
        for _ in range(self.config.fallbacks):
            wanted = Placement(placement.prompt, excluded=taken, allowed=placement.allowed)
            try:
                worker_id = self.pool.router.place(wanted).worker.worker_id
            except RouterError:
                break
            found.append(worker_id)
            taken = taken | {worker_id}
        return found

    def _collect(self) -> Iterable[Metric]:
        yield from counters(
            "dynamo_router_epp_",
            (
                "destinations_ignored",
                "Answers of endpoints that Envoy chose by itself: its cluster lacks those offered.",
                self.ignored,
            ),
            (
                "destinations_moved",
                "Requests that a fallback has served, as Envoy could not reach the first endpoint.",
                self.moved,
            ),
        )
        held = "Bytes of request bodies that wait for a decision."
        yield from gauges("dynamo_router_epp_", ("body_bytes", held, self.body_bytes))

    def on_ignored(self, endpoint: str) -> None:
        """Envoy has taken none of the endpoints that it was offered: its cluster lacks them."""
        self.ignored += 1
        if self.ignored == 1:
            log.warning("Envoy took none of the endpoints that it was offered", served=endpoint)


class _PickedRequest:
    """One call."""

    def __init__(self, picker: Picker, call: ServerCall) -> None:
        self._picker, self._call = picker, call
        self._parts, self._pool = picker.parts, picker.pool
        self._account = current_account()
        self._exchange = Exchange()
        self._held = 0  # bytes of the body that are counted
        self._task: asyncio.Task[None] | None = None
        self._record = RequestRecord()
        self._carried: CarriedCall | None = None
        self._picking: asyncio.Timeout | None = None
        self._answered = asyncio.Event()
        self._ended = False
        self._routed = False

    # The call's own task

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Until Envoy has no more to say of the request."""
        exchange, limits = self._exchange, self._parts.config.peers
        try:
            async with asyncio.timeout(limits.message_timeout_s) as coming:
                async for message in messages:
                    step = exchange.receive(message)
                    for answer in step.answers:
                        await self._write(answer)
                    event = step.event
                    if isinstance(event, RequestEnded):
                        coming.reschedule(None)
                        self._begin(event)
                    elif isinstance(event, AnswerBegan):
                        coming.reschedule(None)
                        self._on_answer(event)
                    elif isinstance(event, AnswerPart) and self._carried is not None:
                        self._carried.feed(event.data)
                    elif self._task is None:
                        self._count(exchange.body_bytes)
                    if step.ended:
                        self._end()
        except TimeoutError:
            self._parts.hits.hit("message_timeout_s")
            self._refuse_unread(ApiError(408, "the request did not come whole in time"))
        except ApiError as error:
            self._refuse_unread(error)

    async def close(self) -> None:
        """Whatever was booked is freed once this returns."""
        task = self._task
        if task is not None:
            if not self._ended:
                task.cancel()
            await asyncio.wait([task])
        self._give_back()

    def _begin(self, request: RequestEnded) -> None:
        self._count(len(request.body))
        self._note(request.head)
        self._task = asyncio.create_task(self._serve(request))

    def _refuse_unread(self, error: ApiError) -> None:
        """Of a request that did not come whole, or is too long."""
        self._note(self._exchange.head)
        self._parts.answers.on_request(self._record)
        self._refuse(error)
        self._parts.answers.on_end(self._record)

    def _note(self, head: Head) -> None:
        """Note what the head says, for access log, metrics and spans."""
        record, headers = self._record, head.headers
        routes = (path for path in (CHAT_PATH, COMPLETIONS_PATH) if head.path.endswith(path))
        record.route = next(routes, OTHER_PATHS) if head.method == "POST" else OTHER_PATHS
        record.scope = {
            "type": "http",
            "method": head.method,
            "path": head.path,
            "scheme": headers.get(":scheme", "http"),
            "client": (headers.get("x-forwarded-for", "").rpartition(",")[2].strip(), 0),
            "headers": [
                (name.encode(), value.encode("latin-1", "replace"))
                for name, value in headers.items()
                if not name.startswith(":")
            ],
        }
        record.request_id = headers.get("x-request-id", "") or secrets.token_hex(16)

    def _on_answer(self, began: AnswerBegan) -> None:
        self._record.status = began.status
        if not self._routed:  # Envoy answers by itself
            if self._task is not None:
                self._task.cancel()
        elif self._carried is not None:
            self._carried.begin(began)
            self._picker.moved += self._carried.moved
            if self._carried.ignored:
                self._picker.on_ignored(self._carried.ignored)

    def _end(self) -> None:
        self._ended = True
        self._answered.set()
        if self._carried is not None:
            self._carried.end()

    async def _write(self, message: bytes) -> None:
        """To Envoy. PeerGoneError if it left, or does not read for too long."""
        if self._call.put(message):
            return
        try:
            async with asyncio.timeout(self._parts.config.limits.write_timeout_s):
                await self._call.write(message)
        except TimeoutError:
            self._parts.hits.hit("write_timeout_s")
            self._call.give_up()
            raise PeerGoneError("Envoy does not read") from None

    def _count(self, size: int) -> None:
        """What is held of the body. ApiError 413 or 429 if that is too much."""
        most = self._parts.config.peers.max_body_bytes
        if size > most:
            self._parts.hits.hit("max_body_bytes")
            raise ApiError(413, f"the body is longer than {most} bytes")
        more = size - self._held
        if more > 0 and (why := self._parts.calls.bytes.take(self._account, more)) is not None:
            raise ApiError(429, f"no capacity for the request: {why}")
        self._held += max(0, more)
        self._picker.body_bytes += max(0, more)

    def _give_back(self) -> None:
        if self._held:
            self._parts.calls.bytes.give_back(self._account, self._held)
            self._picker.body_bytes -= self._held
            self._held = 0

    def _refuse(self, error: BaseException) -> None:
        """Answer in Envoy's place, if that is still possible; else cut the answer off."""
        refusal, record = error_answer(error), self._record
        record.error, record.failure = str(error), refusal.status
        if not self._exchange.may_refuse:
            self._call.end(*status_of(error))
            return
        if not refusal.foreseen:
            log.error("a request could not be picked", exc_info=error)
        record.status = refusal.status
        reason = _REASONS.get(refusal.status, "")
        headers = {
            "content-type": "application/json",
            **({DROPPED_REASON: reason} if reason else {}),
            **refusal.headers,
        }
        self._call.put(self._exchange.refuse(refusal.status, refusal.body, headers, reason))
        self._call.end(StatusCode.OK)

    # The task that places it

    async def _serve(self, request: RequestEnded) -> None:
        record, answers = self._record, self._parts.answers
        set_record(record)
        answers.on_request(record)
        try:
            async with asyncio.timeout(self._picker.config.pick_timeout_s) as self._picking:
                await self._place(request)
        except TimeoutError:
            self._parts.hits.hit("pick_timeout_s")
            self._refuse(ApiError(504, "no endpoint was picked in time"))
        except (asyncio.CancelledError, PeerGoneError):
            pass  # its client has left, or Envoy has
        except Exception as error:
            if self._carried is None or not (self._carried.passes_on or self._ended):
                self._refuse(error)
        finally:
            answers.on_end(record)

    async def _place(self, request: RequestEnded) -> None:
        head, pool = request.head, self._pool
        asked = read_control(head.headers, self._picker.objectives)
        allowed = self._allowed(head)
        if self._record.route == OTHER_PATHS:
            await pool.dispatcher.plain.carried(
                head.path, lambda client: self._send_plainly(client, asked, request.body), allowed
            )
            return
        await self._parts.calls.turns.take(CALL_S)
        is_chat = self._record.route == CHAT_PATH
        await self._infer(request, asked, allowed, is_chat=is_chat)

    def _allowed(self, head: Head) -> frozenset[int]:
        """Ids of the workers that it may go to, empty: all. NoWorkersError if there are none."""
        if head.subset is None:
            return frozenset()
        found = frozenset(self._picker.endpoints.workers_at(frozenset(head.subset)))
        if not found:
            raise NoWorkersError("none of the endpoints that the request may go to is known")
        return found

    async def _send_plainly(self, client: EngineClient, asked: Asked, body: bytes) -> None:
        await self._route(self._picker.endpoints.of_client(client), {}, asked, None)
        await self._answered.wait()

    async def _route(
        self, endpoints: str, headers: dict[str, str], asked: Asked, body: bytes | None
    ) -> None:
        """Send it there; from here on it is not the picker that it waits for."""
        assert self._picking is not None
        self._picking.reschedule(None)
        self._routed = True
        for message in self._exchange.route(
            endpoints, headers=headers, remove=asked.remove, body=body
        ):
            await self._write(message)
        self._give_back()

    async def _infer(
        self, request: RequestEnded, asked: Asked, allowed: frozenset[int], *, is_chat: bool
    ) -> None:
        pool, picker, prompts = self._pool, self._picker, self._picker.prompts
        body = request.body
        read: ChatBody | CompletionBody
        tokens: Tokens
        if is_chat:
            await pool.reader.check_json(body, MOST_JSON_PARTS[CHAT_ROUTE])
            read = await prompts.read_by(read_chat, body)
            tenant = self._tenant(read)
            tokens = await prompts.render(read.messages, read, tenant, len(body))
        else:
            ids, rest = await pool.reader.ids_apart(body, b"prompt")
            await pool.reader.check_json(rest, MAX_JSON_PARTS)
            read = await prompts.read_by(read_completion, rest)
            # The engine computes all prompts of one request: the first one decides.
            if ids is None:
                tokens = (await prompts.read(bytes(read.prompt), "prompt", self._tenant(read)))[0]
            else:
                tokens = ids
        if not len(tokens):
            raise ApiError(400, "the prompt is empty", param="messages" if is_chat else "prompt")
        model, renamed = self._model(read.model, asked)
        self._record.asked_model = read.model
        self._record.model = model if model in picker.names else ""  # a label of metrics
        if renamed:
            body = await prompts.read_by(lambda data: with_model(data, model), body)
        base = pool.monitor.facts.model_id
        adapter = model if base and model not in picker.names else None
        made = tokens if isinstance(tokens, np.ndarray) else array("I", tokens)
        salt = salt_of(read.cache_salt)
        prompt = await pool.reader.prompt(made, adapter, None if salt is None else str(salt))
        await self._parts.calls.turns.take(ANSWER_S + len(tokens) * TOKEN_S)
        facts = GenerateFacts(
            "", prompt, 0, read.output_limit, max(1, read.n or 1), bool(read.stream)
        )
        metadata, pinned, urgency = read_metadata(asked.metadata)
        caller = current_caller()
        carried = self._carried = CarriedCall(
            picker.endpoints,
            picker.fallbacks,
            lambda endpoints, headers: self._route(
                endpoints, headers, asked, body if renamed else None
            ),
            pool.monitor.is_ready,
            pool.handoffs.outcomes,
        )
        self._record.generation = carried.generation
        await pool.dispatcher.generate(
            ReadRequest(pairing_facts(read), facts),
            _drop,
            put=lambda message: True,
            metadata=metadata,
            pinned=pinned,
            urgency=urgency,
            objectives=read_objectives(asked.metadata),
            call_metadata=asked.metadata,
            session=read_session(asked.metadata, caller.name, self._account),
            caller=caller,
            allowed=allowed,
            carrier=carried,
        )

    def _tenant(self, read: ChatBody | CompletionBody) -> Tenant:
        return Tenant(self._account, salt_of(read.cache_salt))

    def _model(self, named: str, asked: Asked) -> tuple[str, bool]:
        """The name for the engine, and whether the body has another one."""
        known, own = self._picker.config.model_id, self._pool.monitor.facts.model_id
        target = asked.model or named
        if known is not None:
            if target not in self._picker.names:
                raise unknown_model(target, self._picker.names)
            target = own or target
        return target, target != named


async def _drop(message: bytes) -> None:
    """The answer reaches its client through Envoy."""
