"""The client of one engine that serves trtllm.TrtllmService.

Generate carries bytes both ways: the router does not decode what it only passes on.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from ..base.errors import StatusCode, WorkerError
from ..base.identity import MAX_WORKER_ID
from ..transport.security import ClientTls
from .cache_clearing import CLEAR_METHOD
from .channels import ConnectionPolicy, EngineCall, EngineChannel, EventCall, Metadata
from .engine_facts import EngineFacts, facts_of
from .failures import EngineCallError, Origin
from .prefetch import ask_prefetch
from .registry import MAX_RANKS, WorkerEntry
from .trtllm_proto import SERVICE, common_pb, pb

WORKER_ID_KEY = "x-dynamo-worker-id"
PREFILL_WORKER_ID_KEY = "x-dynamo-prefill-worker-id"
"""Of the router's answers: who computed the prompt, if not the worker that decoded."""
DP_SIZE_KEY = "x-dynamo-dp-size"
PUBLISHER_ID_KEY = "x-dynamo-publisher-id"
"""Under which ids the engine publishes its KV events, with commas: one for each rank."""


@dataclass(frozen=True)
class EngineIdentity:
    """Who an engine says it is, in the initial metadata of its answers; None where it is silent."""

    worker_id: int | None = None
    dp_size: int | None = None
    publisher_ids: tuple[int, ...] | None = None

    def fits(self, entry: WorkerEntry) -> bool:
        """Whether nothing of what it says differs from what is known of a worker."""
        return (
            self.worker_id in (None, entry.worker_id)
            and self.dp_size in (None, entry.dp_size)
            and self.publisher_ids in (None, entry.publisher_ids)
        )

    def or_else(self, other: "EngineIdentity") -> "EngineIdentity":
        """This, and what another answer of the engine says where this one is silent."""
        return EngineIdentity(
            other.worker_id if self.worker_id is None else self.worker_id,
            other.dp_size if self.dp_size is None else self.dp_size,
            other.publisher_ids if self.publisher_ids is None else self.publisher_ids,
        )


class TrtllmClient:
    """The way to one engine, over nghttp2. Methods raise EngineCallError when it does.

    `timeout` is in seconds everywhere; a call without an answer by then fails with
    DEADLINE_EXCEEDED. With `tls` the engine is believed, and shown who we are, as that says; its
    certificate must then carry `tls_name`, if given, unless the settings of `tls` name another.
    """

    dialect = "trtllm"
    service = SERVICE
    """whose methods are called"""

    def __init__(
        self,
        address: str,
        connection: ConnectionPolicy | None = None,
        tls: ClientTls | None = None,
        tls_name: str | None = None,
    ) -> None:
        self.address = address
        self._closed = False
        self._generate = f"/{self.service}/Generate"
        connection = connection or ConnectionPolicy()
        make = partial(EngineChannel, address, connection, tls, tls_name)
        self._channel = make()
        # Events have a connection of their own: many that wait to be read keep no answer back.
        self._make_events = make
        self._events: EngineChannel | None = None

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> EngineCall:
        """Start a generation; iterate the call for the engine's messages, as bytes.

        The caller ends it: to its last message, or by `call.cancel()`.
        """
        return self._channel.stream(self._generate, request, timeout=timeout, metadata=metadata)

    async def prefetch(
        self, request: bytes, *, timeout: float, metadata: Metadata | None = None
    ) -> int | None:
        """Have lower tiers' blocks of a request loaded before it comes: how many that are.

        None: the engine does not know how.
        """
        return await ask_prefetch(self._channel, request, timeout=timeout, metadata=metadata)

    async def clear_kv_blocks(self, *, timeout: float) -> None:
        """Have the engine empty its cache; EngineCallError, with its words, if it does not."""
        await self._channel.unary(CLEAR_METHOD, b"", timeout=timeout)

    async def embed(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> bytes:
        _, answer = await self._channel.unary(
            f"/{self.service}/Embed", request, timeout=timeout, metadata=metadata
        )
        return answer

    def get_tokenizer(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> EngineCall:
        """Ask for the tokenizer; iterate the call for its chunks, and end it as a generation."""
        method = f"/{self.service}/GetTokenizer"
        return self._channel.stream(method, request, timeout=timeout, metadata=metadata)

    def subscribe_kv_events(self, start: int) -> EventCall:
        """Ask for cache events from batch number `start` on, 0: from the state of the cache.

        Iterate the call for the batches, and end it as a generation.
        """
        if self._events is None:
            self._events = self._make_events()
        request = common_pb.SubscribeKvEventsRequest(
            start_sequence_number=start, load_records_before_first_batch=True
        )
        method = f"/{self.service}/SubscribeKvEvents"
        return self._events.events(method, request.SerializeToString())

    async def check_health(self, *, timeout: float) -> EngineIdentity:
        """Ask whether the engine is well; WorkerError with its own words if it says it is not."""
        identity, answer = await self._ask(
            "HealthCheck", pb.HealthCheckRequest(), pb.HealthCheckResponse, timeout
        )
        if answer.status.strip().upper() != "OK":
            raise WorkerError(f"engine's health check answers {answer.status!r}, not OK")
        return identity

    async def describe(self, *, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        """Ask for everything an engine says of itself. What it does not implement stays unknown."""
        model, server = await asyncio.gather(
            self._ask_if_known(
                "GetModelInfo", pb.GetModelInfoRequest(), pb.GetModelInfoResponse, timeout
            ),
            self._ask_if_known(
                "GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse, timeout
            ),
        )
        return model[0].or_else(server[0]), facts_of(
            model[1] or pb.GetModelInfoResponse(), server[1] or pb.GetServerInfoResponse()
        )

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        """Stop a request: (whether it ran there, the engine's words). Unknown ids are no error."""
        if self._closed:
            return False, "its channel was closed, and the request with it"
        request = pb.AbortRequest(request_id=request_id)
        _, answer = await self._ask("Abort", request, pb.AbortResponse, timeout)
        return answer.success, answer.message

    async def close(self) -> None:
        """Close the channel; what still runs over it is cancelled. Idempotent."""
        self._closed = True
        if self._events is not None:
            await self._events.close()
        await self._channel.close()

    async def _ask(
        self, method: str, request: Any, response: Any, timeout: float
    ) -> tuple[EngineIdentity, Any]:
        """Who answers, and the answer to a question with one message each way."""
        metadata, answer = await self._channel.unary(
            f"/{self.service}/{method}", request.SerializeToString(), timeout=timeout
        )
        return _identity_of(metadata), read_answer(method, response, answer)

    async def _ask_if_known(
        self, method: str, request: Any, response: Any, timeout: float
    ) -> tuple[EngineIdentity, Any]:
        """The same, and nothing of an engine that does not implement the method."""
        try:
            return await self._ask(method, request, response, timeout)
        except EngineCallError as error:
            if error.code() is StatusCode.UNIMPLEMENTED:
                return EngineIdentity(), None
            raise


def read_answer(method: str, response: Any, answer: bytes) -> Any:
    """The answer to a method, of this type. EngineCallError if the bytes are none."""
    try:
        return response.FromString(answer)
    except DecodeError:
        text = f"the answer to {method} cannot be read"
        raise EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, text) from None


def _identity_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> EngineIdentity:
    numbers = {}
    publishers: tuple[int, ...] | None = None
    for key, value in metadata or ():
        if key == PUBLISHER_ID_KEY:
            publishers = _read_publishers(value)
        if key in (WORKER_ID_KEY, DP_SIZE_KEY):
            if not (isinstance(value, str) and value.isdecimal() and int(value) <= MAX_WORKER_ID):
                raise WorkerError(f"engine sends {key}: {value!r}, which is no number")
            numbers[key] = int(value)
            if key == DP_SIZE_KEY and not 1 <= numbers[key] <= MAX_RANKS:
                raise WorkerError(f"engine sends {key}: {value!r}, which is not in 1..{MAX_RANKS}")
    return EngineIdentity(numbers.get(WORKER_ID_KEY), numbers.get(DP_SIZE_KEY), publishers)


def _read_publishers(value: str | bytes) -> tuple[int, ...]:
    words = str(value).split(",")
    if len(words) > MAX_RANKS or not all(w.isdecimal() and int(w) < 2**64 for w in words):
        raise WorkerError(f"engine sends {PUBLISHER_ID_KEY}: {value!r}, which are no publisher ids")
    return tuple(map(int, words))
