"""TrtllmServicer: trtllm.TrtllmService as one mock engine answers it."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import msgspec

from ...runtime.errors import InvalidRequestError, NoWorkersError, WorkerError
from ...runtime.grpc_servers import Method, Methods, ServerCall
from ..dialects import with_handoff
from ..trtllm_proto import SERVICE, common_pb, pb
from .config import MockerConfig
from .dp_engine import DataParallelEngine
from .kv_feed import KvEventFeed
from .live import TokenStream
from .messages import ResponseWriter, engine_requests, role_of

Write = Callable[[bytes], Awaitable[None]]

VERSION = "mock-1"
DP_RANK_KEY = "x-dynamo-dp-rank"
"""Metadata that names the rank of a request: the protocol has no field for it."""

RETURNING_KEY = "x-dynamo-returning-tokens"
"""Metadata of a request: how many of its tokens a later request begins with; 0: none returns."""

PUBLISHER_ID_KEY = "x-dynamo-publisher-id"
"""Metadata of answers: under which ids the ranks publish their KV events, with commas."""

_MOST_DIGITS = 9  # of a number in metadata
_MOST_ANNOUNCED = 4096  # characters: metadata has a limit, and more ranks go unannounced
_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


class TrtllmServicer:
    """The handlers of one engine."""

    def __init__(
        self,
        ranked: DataParallelEngine,
        feed: KvEventFeed,
        config: MockerConfig,
        worker_id: int,
        publisher_ids: Sequence[int] = (),
    ) -> None:
        self._engine = ranked
        self._feed = feed
        self._config = config
        self._identity: tuple[tuple[str, str], ...] = (
            ("x-dynamo-worker-id", str(worker_id)),
            ("x-dynamo-dp-size", str(config.engine.dp_size)),
        )
        announced = ",".join(map(str, publisher_ids))
        if announced and len(announced) <= _MOST_ANNOUNCED:
            self._identity += ((PUBLISHER_ID_KEY, announced),)
        self._role = role_of(config, worker_id)
        self._unnamed = itertools.count()
        self._several: dict[str, Sequence[TokenStream]] = {}  # of requests for several answers
        self.failure: grpc.StatusCode | None = None
        """a fault: Generate ends at once with it"""

    def methods(self) -> Methods:
        """All methods of the service. Streams of many messages carry bytes: see ResponseWriter."""
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
        return {f"/{SERVICE}/{name}": method for name, method in found.items()}

    async def generate(self, message: Any, context: ServerCall) -> None:
        """Deltas while streaming, one for each token; then the whole output once."""
        await self._engine.awake()
        if self.failure is grpc.StatusCode.OK:
            return
        if self.failure is not None:
            await context.abort(self.failure, "a fault that was asked for")
        # An unnamed request cannot be aborted, but it can run.
        request_id = message.request_id or f"unnamed {next(self._unnamed)}"
        streams: list[TokenStream] = []
        try:
            rank = _number_in(context, DP_RANK_KEY, "dp_rank")
            returning = _number_in(context, RETURNING_KEY, "returning_tokens")
            most = self._config.engine.max_num_seqs
            self._role.check_request(message)
            requests = engine_requests(message, request_id, returning, most=most)
            if rank is None and len(requests) > 1:  # they share the prompt's cache
                rank = self._engine.least_loaded
            for request in requests:
                streams.append(self._engine.submit(request, rank))
            if len(streams) == 1:
                await self._pass_on(streams[0], message, 0, context.write)
            else:
                await self._pass_all_on(streams, message, context.write)
        except InvalidRequestError as error:
            duplicate = error.field == "request_id"
            code = grpc.StatusCode.ALREADY_EXISTS if duplicate else _INVALID
            await context.abort(code, str(error))
        except NoWorkersError as error:
            await context.abort(_EXHAUSTED, str(error))
        except WorkerError as error:
            failed = grpc.StatusCode.INTERNAL if streams else grpc.StatusCode.UNAVAILABLE
            await context.abort(failed, str(error))
        finally:
            for stream in streams:
                self._engine.release(stream)

    async def _pass_on(self, stream: TokenStream, message: Any, index: int, write: Write) -> None:
        """One answer's messages, as they come. WorkerError if the engine breaks."""
        writer = ResponseWriter(stream, message, self._config.engine.vocab_size, index)
        visible = stream.sequence.visible if message.streaming else 0
        sent = 0
        while True:
            while sent < min(stream.ready, visible):
                await write(writer.chunk(sent))
                sent += 1
            if stream.done:
                break
            await stream.wait(stream.ready)
        if self._engine.failure is not None:
            raise WorkerError(self._engine.failure)
        last = writer.complete()
        if self._role.hands_over:
            handoff = self._role.handoff(stream.sequence.prompt_len)
            last = with_handoff(last, msgspec.json.encode(handoff))
        await write(last)

    async def _pass_all_on(
        self, streams: Sequence[TokenStream], message: Any, write: Write
    ) -> None:
        """The messages of several answers, mixed as they come; one is written at a time."""
        request_id = streams[0].sequence.request.request_id
        self._several[request_id] = streams
        turn = asyncio.Lock()

        async def write_in_turn(body: bytes) -> None:
            async with turn:
                await write(body)

        try:
            async with asyncio.TaskGroup() as group:
                for index, stream in enumerate(streams):
                    group.create_task(self._pass_on(stream, message, index, write_in_turn))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            del self._several[request_id]

    async def abort(self, message: Any, context: ServerCall) -> Any:
        await self._engine.awake()
        several = self._several.get(message.request_id, ())
        named = {message.request_id, *(each.sequence.request.request_id for each in several)}
        if any([self._engine.abort(request_id) for request_id in named]):
            return pb.AbortResponse(success=True, message="aborted")
        return pb.AbortResponse(success=False, message=f"{message.request_id!r} not found")

    async def health_check(self, message: Any, context: ServerCall) -> Any:
        await self._engine.awake()
        await context.send_initial_metadata(self._identity)
        failure = self._engine.failure
        status = "OK" if failure is None else f"failed: {failure}"
        return pb.HealthCheckResponse(status="starting" if self._engine.starting else status)

    async def get_model_info(self, message: Any, context: ServerCall) -> Any:
        await self._engine.awake()
        await context.send_initial_metadata(self._identity)
        engine = self._config.engine
        return pb.GetModelInfoResponse(
            model_id=self._config.model_id,
            max_input_len=engine.max_input_len,
            max_seq_len=engine.max_seq_len,
            max_batch_size=engine.max_num_seqs,
            vocab_size=engine.vocab_size,
            supported_features=[
                f"kv_block_size={engine.block_size}",
                f"total_kv_blocks={engine.num_gpu_blocks}",
                f"max_num_seqs={engine.max_num_seqs}",
                f"max_num_batched_tokens={engine.max_num_batched_tokens}",
            ],
        )

    async def get_server_info(self, message: Any, context: ServerCall) -> Any:
        await self._engine.awake()
        await context.send_initial_metadata(self._identity)
        return pb.GetServerInfoResponse(
            version=VERSION,
            backend="tensorrt-llm",
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            context_parallel_size=1,
            world_size=self._config.engine.dp_size,
        )

    async def subscribe_kv_events(self, message: Any, context: ServerCall) -> None:
        """The state of the cache, then its changes, until the client goes or is too far behind."""
        await self._engine.awake()
        if not self._config.kv_stream:
            await context.abort(_UNIMPLEMENTED, "this engine tells no cache events")
        await context.send_initial_metadata(self._identity)
        subscription = self._feed.subscribe(
            message.start_sequence_number, load_first=message.load_records_before_first_batch
        )
        try:
            while (batch := await subscription.next()) is not None:
                await self._engine.awake()
                await context.write(batch)
        finally:
            self._feed.unsubscribe(subscription)
        if subscription.overrun:
            await context.abort(_EXHAUSTED, "too far behind the engine: subscribe again")
        if subscription.cut:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "a fault that was asked for")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine stops")

    async def embed(self, message: Any, context: ServerCall) -> Any:
        await context.abort(_UNIMPLEMENTED, "a mock engine has no embeddings")

    async def get_tokenizer(self, message: Any, context: ServerCall) -> None:
        await context.abort(_UNIMPLEMENTED, "a mock engine has no tokenizer")


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
