"""Picker: envoy.service.ext_proc.v3.ExternalProcessor in front of pools of workers.

Each call is one HTTP request of a client of Envoy's. The task of the call reads Envoy's messages
and answers those of the response; another one places the request, has it booked while Envoy
carries it, and sends what belongs to the request: so each direction has one writer.
"""

import asyncio
import secrets
from array import array
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

import numpy as np
import structlog
from prometheus_client.metrics_core import Metric

from ...base.account import current_account
from ...base.errors import NoWorkersError, StatusCode
from ...base.identity import WorkerWithDpRank
from ...base.request_record import RequestRecord, set_record
from ...router.admission import Urgency, read_objectives
from ...router.affinity import read_session
from ...server.access import current_caller
from ...server.call_limits import PROCESSOR
from ...server.dispatch import (
    MAX_JSON_PARTS,
    GenerateFacts,
    ReadRequest,
    status_of,
)
from ...server.metrics import counters, gauges
from ...server.server_parts import ServerParts
from ...server.services import read_metadata
from ...transport.grpc_methods import Method, Methods
from ...transport.http2 import PeerGoneError, ServerCall
from ...workers.channels import Metadata
from ...workers.dialects import EngineClient
from ..completions import CHAT_ROUTE, COMPLETIONS_ROUTE, MOST_JSON_PARTS
from ..config import EnvoyConfig
from ..engine_requests import ANSWER_S, CALL_S, TOKEN_S, Tokens, read_by
from ..openai import ApiError, error_answer
from ..origin import salt_of
from ..processor import Tenant
from .carried_call import CarriedCall
from .control_headers import DROPPED_REASON, Asked, read_control
from .endpoints import no_endpoint
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
from .rewrites import RewriteView
from .targets import PickPool, Target, Targets

OTHER_PATHS = "other"
"""Stands for the route of each path that no prompt comes by."""
_REASONS = {429: "rejected-saturated", 503: "rejected-no-endpoints", 504: "rejected-ttl-expired"}
PATH = f"/{PROCESSOR}/Process"

log = structlog.get_logger(__name__)


class Picker:
    """Answers Envoy's calls from the pools of `targets`, on the event loop."""

    def __init__(
        self,
        parts: ServerParts,
        targets: Targets,
        config: EnvoyConfig,
        objectives: ObjectiveView | None = None,
        rewrites: RewriteView | None = None,
    ) -> None:
        """`objectives`: those that requests may name; `rewrites`: other names of models. None: they
        are not watched."""
        self.objectives, self.rewrites = objectives, rewrites
        self.parts, self.targets, self.config = parts, targets, config
        self.methods: Methods = {PATH: Method(self._process, streams=True)}
        self.ignored = self.moved = self.body_bytes = 0
        parts.metrics.add(self._collect)
        parts.answers.counts.expect_models(
            (CHAT_ROUTE, COMPLETIONS_ROUTE), lambda: self.targets.names
        )

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
        self._parts = picker.parts
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
        """Until Envoy has no more to say of the request.

        What passes of an answer is looked at behind its sending, which is due at the end of the
        turn: the client does not wait for that.
        """
        exchange, limits = self._exchange, self._parts.config.peers
        soon = asyncio.get_running_loop().call_soon
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
                        soon(self._on_answer, event)
                    elif isinstance(event, AnswerPart):
                        soon(self._on_part, event.data)
                    elif self._task is None:
                        self._count(exchange.body_bytes)
                    if step.ended:
                        self._ended = True
                        soon(self._on_end)
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

    def _on_part(self, data: bytes) -> None:
        if self._carried is not None:
            self._carried.feed(data)

    def _on_end(self) -> None:
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
        head, targets = request.head, self._picker.targets
        asked = read_control(head.headers, self._picker.objectives)
        if self._record.route == OTHER_PATHS:
            pool = targets.plain(request.body)
            await pool.workers.dispatcher.plain.carried(
                head.path,
                lambda client: self._send_plainly(pool, client, asked, request.body),
                _allowed(pool, head),
            )
            return
        await self._parts.calls.turns.take(CALL_S)
        reader, body, ids = targets.reader, request.body, None
        read: ChatBody | CompletionBody
        if self._record.route == CHAT_PATH:
            await reader.check_json(body, MOST_JSON_PARTS[CHAT_ROUTE])
            read = await read_by(reader, read_chat, body)
        else:
            ids, rest = await reader.ids_apart(body, b"prompt")
            await reader.check_json(rest, MAX_JSON_PARTS)
            read = await read_by(reader, read_completion, rest)
        self._record.asked_model = read.model
        metadata, pinned, urgency = read_metadata(asked.metadata)
        name, rewrites = asked.model, self._picker.rewrites
        if not name and rewrites is not None:
            name = rewrites.target(read.model) or ""
        found = targets.find(name or read.model)
        if pinned is not None and len(found) > 1:
            having = [each for each in found if each.pool.workers.has_worker(pinned.worker_id)]
            found = having or found
        for number, target in enumerate(found):
            try:
                await self._infer(
                    _Inference(target, asked, read, ids, metadata, pinned, urgency), request
                )
                return
            except NoWorkersError as error:  # nothing of it has begun: it belongs to no pool yet
                if error.overloaded or self._routed or number == len(found) - 1:
                    raise

    async def _send_plainly(
        self, pool: PickPool, client: EngineClient, asked: Asked, body: bytes
    ) -> None:
        endpoint = pool.endpoints.of_client(client)
        if not endpoint:
            raise no_endpoint(None)
        await self._route(endpoint, {}, asked, None)
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

    async def _infer(self, wanted: "_Inference", request: RequestEnded) -> None:
        """Have it booked at a worker of the target while Envoy carries it there."""
        target, asked, read = wanted.target, wanted.asked, wanted.read
        workers, body = target.pool.workers, request.body
        allowed = _allowed(target.pool, request.head)
        tokens = await self._tokens(wanted, len(body))
        if not len(tokens):
            param = "messages" if isinstance(read, ChatBody) else "prompt"
            raise ApiError(400, "the prompt is empty", param=param)
        self._record.model = target.model if target.known else ""  # a label of metrics
        renamed = target.model != read.model
        if renamed:
            body = await read_by(workers.reader, lambda data: with_model(data, target.model), body)
        made = tokens if isinstance(tokens, np.ndarray) else array("I", tokens)
        salt = salt_of(read.cache_salt)
        prompt = await workers.reader.prompt(
            made, target.adapter, None if salt is None else str(salt)
        )
        await self._parts.calls.turns.take(ANSWER_S + len(tokens) * TOKEN_S)
        facts = GenerateFacts(
            "", prompt, 0, read.output_limit, max(1, read.n or 1), bool(read.stream)
        )
        caller = current_caller()
        carried = self._carried = CarriedCall(
            target.pool.endpoints,
            self._picker.config.fallbacks,
            lambda endpoints, headers: self._route(
                endpoints, headers, asked, body if renamed else None
            ),
            workers.monitor.is_ready,
            workers.handoffs.outcomes,
        )
        self._record.generation = carried.generation
        await workers.dispatcher.generate(
            ReadRequest(pairing_facts(read), facts),
            _drop,
            put=lambda message: True,
            metadata=wanted.metadata,
            pinned=wanted.pinned,
            urgency=wanted.urgency,
            objectives=read_objectives(asked.metadata),
            call_metadata=asked.metadata,
            session=read_session(asked.metadata, caller.name, self._account),
            caller=caller,
            allowed=allowed,
            carrier=carried,
        )

    async def _tokens(self, wanted: "_Inference", size: int) -> Tokens:
        """Of the prompt that decides where it goes. `size`: bytes of the body."""
        read, prompts = wanted.read, wanted.target.pool.prompts
        tenant = Tenant(self._account, salt_of(read.cache_salt))
        if isinstance(read, ChatBody):
            return await prompts.render(read.messages, read, tenant, size)
        if wanted.ids is not None:
            return wanted.ids
        # The engine computes all prompts of one request: the first one decides.
        return (await prompts.read(read.prompt, "prompt", tenant))[0]


class _Inference(NamedTuple):
    """A request for an answer that was read, and where it may go."""

    target: Target
    asked: Asked
    read: ChatBody | CompletionBody
    ids: Tokens | None
    """of its prompt, which were taken out of its body"""
    metadata: Metadata
    pinned: WorkerWithDpRank | None
    urgency: Urgency


def _allowed(pool: PickPool, head: Head) -> frozenset[int]:
    """Ids of the workers that it may go to, empty: all. NoWorkersError if there are none."""
    if head.subset is None:
        return frozenset()
    found = frozenset(pool.endpoints.workers_at(frozenset(head.subset)))
    if not found:
        raise NoWorkersError("none of the endpoints that the request may go to is known")
    return found


async def _drop(message: bytes) -> None:
    """The answer reaches its client through Envoy."""
