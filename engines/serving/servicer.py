"""TrtllmServicer: trtllm.TrtllmService as a served engine answers it."""

import itertools
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from ...base.errors import InvalidRequestError, NoWorkersError, StatusCode, WorkerError
from ...transport.grpc_methods import Method, Methods
from ...transport.http2 import ServerCall
from ...workers.cache_clearing import CLEAR_METHOD
from ...workers.dialects import DP_RANK_KEY, TrtllmAnswer, with_handoff
from ...workers.engine_facts import EngineFacts
from ...workers.prefetch import PREFETCH_METHOD, encode_loaded
from ...workers.retention import RETURNING_KEY
from ...workers.trtllm_client import DP_SIZE_KEY, PUBLISHER_ID_KEY, WORKER_ID_KEY
from ...workers.trtllm_proto import SERVICE, common_pb, pb
from .engine import ClearingEngine, EngineUnavailableError, PrefetchingEngine, ServedEngine
from .kv_feed import KvEventFeed
from .request import trtllm_request

MOST_ANSWERS = 256
"""To one request, of an engine that does not say how many requests it runs at a time."""
_MOST_DIGITS = 9  # of a number in metadata
_MOST_ANNOUNCED = 4096  # characters: metadata has a limit, and more ranks go unannounced
_EXHAUSTED = StatusCode.RESOURCE_EXHAUSTED
_INVALID = StatusCode.INVALID_ARGUMENT
_UNAVAILABLE = StatusCode.UNAVAILABLE
_UNIMPLEMENTED = StatusCode.UNIMPLEMENTED


class TrtllmServicer:
    """The handlers of one engine."""

    def __init__(
        self,
        engine: ServedEngine,
        feed: KvEventFeed | None,
        facts: EngineFacts,
        worker_id: int,
        publisher_ids: Sequence[int] = (),
    ) -> None:
        """`feed`: of its cache events; None: they are not sent from here. `facts`: what it says of
        itself. `publisher_ids`: under which its ranks publish them."""
        self._engine = engine
        self._feed = feed
        self._facts = facts
        self._identity: tuple[tuple[str, str], ...] = (
            (WORKER_ID_KEY, str(worker_id)),
            (DP_SIZE_KEY, str(engine.dp_size)),
        )
        announced = ",".join(map(str, publisher_ids))
        if announced and len(announced) <= _MOST_ANNOUNCED:
            self._identity += ((PUBLISHER_ID_KEY, announced),)
        self._unnamed = itertools.count()

    def methods(self) -> Methods:
        """All methods of the service. Streams of many messages carry bytes: see TrtllmAnswer."""
        found = {
            "Generate": Method(self.generate, pb.GenerateRequest.FromString),
            "Abort": _unary(self.abort, pb.AbortRequest, pb.AbortResponse),
            "HealthCheck": _unary(self.health_check, pb.HealthCheckRequest, pb.HealthCheckResponse),
            "GetModelInfo": _unary(
                self.get_model_info, pb.GetModelInfoRequest, pb.GetModelInfoResponse
            ),
            "GetServerInfo": _unary(
                self.get_server_info, pb.GetServerInfoRequest, pb.GetServerInfoResponse
            ),
            "SubscribeKvEvents": Method(
                self.subscribe_kv_events, common_pb.SubscribeKvEventsRequest.FromString
            ),
            "Embed": _unary(self.embed, pb.EmbedRequest, pb.EmbedResponse),
            "GetTokenizer": Method(self.get_tokenizer),
        }
        methods = {f"/{SERVICE}/{name}": method for name, method in found.items()}
        if isinstance(self._engine, PrefetchingEngine) and self._engine.prefetches:
            decode = pb.GenerateRequest.FromString
            methods[PREFETCH_METHOD] = Method(self.prefetch, decode, encode_loaded)
        if isinstance(self._engine, ClearingEngine):
            methods[CLEAR_METHOD] = Method(self.clear_kv_blocks)
        return methods

    async def generate(self, message: Any, context: ServerCall) -> None:
        """While streaming, tokens as they come; then each answer once as a whole."""
        # An unnamed request cannot be aborted, but it can run.
        request_id = message.request_id or f"unnamed {next(self._unnamed)}"
        try:
            rank = _number_in(context, DP_RANK_KEY, "dp_rank")
            returning = _number_in(context, RETURNING_KEY, "returning_tokens")
            request = trtllm_request(message, request_id, rank, returning)
            most = self._facts.max_batch_size or MOST_ANSWERS
            if request.answers > most:
                raise InvalidRequestError(
                    f"{request.answers} answers are more than the {most} requests that this engine"
                    " runs at a time",
                    field="num_return_sequences",
                )
            prompt_tokens = len(request.token_ids)
            answers = [TrtllmAnswer(message, prompt_tokens, i) for i in range(request.answers)]
            async with aclosing(self._engine.generate(request)) as parts:
                async for part in parts:
                    answer = answers[part.answer]
                    answer.cached_tokens = part.cached_tokens
                    if part.tokens:
                        chunk = answer.add(part.tokens, part.logprobs)
                        if chunk is not None:
                            await context.write(chunk)
                    if part.finish_reason:
                        last = answer.complete(part.finish_reason, part.matched_stop)
                        if part.handoff is not None:
                            last = with_handoff(last, part.handoff)
                        await context.write(last)
        except InvalidRequestError as error:
            duplicate = error.field == "request_id"
            code = StatusCode.ALREADY_EXISTS if duplicate else _INVALID
            await context.abort(code, str(error))
        except NoWorkersError as error:
            await context.abort(_EXHAUSTED, str(error))
        except EngineUnavailableError as error:
            await context.abort(_UNAVAILABLE, str(error))
        except WorkerError as error:
            await context.abort(StatusCode.INTERNAL, str(error))

    async def prefetch(self, message: Any, context: ServerCall) -> int:
        """Load blocks of a request that is expected from lower tiers: how many."""
        assert isinstance(self._engine, PrefetchingEngine)
        try:
            rank = _number_in(context, DP_RANK_KEY, "dp_rank")
            return await self._engine.prefetch(trtllm_request(message, "", rank))
        except InvalidRequestError as error:
            await context.abort(_INVALID, str(error))
        except WorkerError as error:
            await context.abort(_UNAVAILABLE, str(error))

    async def clear_kv_blocks(self, message: bytes, context: ServerCall) -> bytes:
        """Empty the cache."""
        assert isinstance(self._engine, ClearingEngine)
        try:
            await self._engine.clear_kv_blocks()
        except EngineUnavailableError as error:
            await context.abort(_UNAVAILABLE, str(error))
        except WorkerError as error:
            await context.abort(StatusCode.FAILED_PRECONDITION, str(error))
        return b""

    async def abort(self, message: Any, context: ServerCall) -> Any:
        if await self._engine.abort(message.request_id):
            return pb.AbortResponse(success=True, message="aborted")
        return pb.AbortResponse(success=False, message=f"{message.request_id!r} not found")

    async def health_check(self, message: Any, context: ServerCall) -> Any:
        await context.send_initial_metadata(self._identity)
        return pb.HealthCheckResponse(status=self._engine.status)

    async def get_model_info(self, message: Any, context: ServerCall) -> Any:
        await context.send_initial_metadata(self._identity)
        return self._facts.as_message(pb.GetModelInfoResponse)

    async def get_server_info(self, message: Any, context: ServerCall) -> Any:
        await context.send_initial_metadata(self._identity)
        return self._facts.as_message(pb.GetServerInfoResponse)

    async def subscribe_kv_events(self, message: Any, context: ServerCall) -> None:
        """The state of the cache, then its changes, until the client goes or is too far behind."""
        if self._feed is None:
            await context.abort(_UNIMPLEMENTED, "this engine publishes no KV events")
        await context.send_initial_metadata(self._identity)
        subscription = self._feed.subscribe(
            message.start_sequence_number, load_first=message.load_records_before_first_batch
        )
        try:
            while (batch := await subscription.next()) is not None:
                await context.write(batch)
        finally:
            self._feed.unsubscribe(subscription)
        if subscription.overrun:
            await context.abort(_EXHAUSTED, "too far behind the engine: subscribe again")
        await context.abort(_UNAVAILABLE, subscription.reason)

    async def embed(self, message: Any, context: ServerCall) -> Any:
        await context.abort(_UNIMPLEMENTED, "this engine has no embeddings")

    async def get_tokenizer(self, message: Any, context: ServerCall) -> None:
        await context.abort(_UNIMPLEMENTED, "this engine does not serve its tokenizer")


def _number_in(context: ServerCall, wanted: str, field: str) -> int | None:
    """What the call's metadata say under a key. InvalidRequestError if that is no number."""
    for key, value in context.invocation_metadata():
        if key == wanted:
            if not str(value).isdecimal() or len(value) > _MOST_DIGITS:
                raise InvalidRequestError(f"{wanted} {value!r} is no number", field=field)
            return int(value)
    return None


def _unary(answer: Any, request: Any, response: Any) -> Method:
    return Method(answer, request.FromString, response.SerializeToString)
