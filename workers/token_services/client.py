"""The client of one engine whose gRPC service takes and returns token ids, in words of its own."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from ...base.errors import InvalidRequestError, WorkerError
from ...transport.security import ClientTls
from ..channels import ConnectionPolicy, EngineCall, Metadata
from ..dialects import DP_RANK_KEY, FailedCall, failure_of, with_stated
from ..engine_facts import EngineFacts
from ..registry import MAX_RANKS
from ..transfer_facts import TransferFacts
from ..trtllm_client import EngineIdentity, TrtllmClient, read_answer
from ..trtllm_proto import common_pb, pb
from .answers import AnswerReader
from .asked import Asked
from .call import Reader, TranslatedCall

FLUSH_MARGIN_S = 1.0
"""Of the time for emptying a cache: an engine waits for its requests for the rest of it."""


class TokenServiceClient(TrtllmClient):
    """See TrtllmClient for what each call is. The tokenizer and the KV events are asked for, and
    answered, as those of trtllm.TrtllmService: their messages are common to all.

    `block_size` is the router's; `transfer` and `parallel` are what its URL says of its hand-offs.
    """

    messages: ClassVar[Any]
    """the module of its protocol"""
    counts_all: ClassVar[bool]
    """see AnswerReader"""
    inference = ""
    """the service that generates, if that is another one"""

    def __init__(
        self,
        address: str,
        connection: ConnectionPolicy | None = None,
        tls: ClientTls | None = None,
        tls_name: str | None = None,
        *,
        block_size: int = 1,
        transfer: TransferFacts = TransferFacts(),  # noqa: B008  # it is frozen
        parallel: tuple[int, int] = (0, 0),
    ) -> None:
        self._policy = connection or ConnectionPolicy()
        super().__init__(address, self._policy, tls, tls_name)
        self._generate = f"/{self.inference or self.service}/Generate"
        self.host = urlsplit(f"//{address}").hostname or ""
        self.block_size = block_size
        self._transfer, self._parallel = transfer, parallel
        self._running: dict[str, TranslatedCall] = {}

    @abstractmethod
    def translate(self, request: bytes, dp_rank: int | None) -> tuple[Asked, bytes]:
        """A serialized GenerateRequest, and that of the service for it. InvalidRequestError, naming
        it, for what the service has no word for."""

    @abstractmethod
    async def ask_facts(self, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        """What the engine says of itself."""

    @abstractmethod
    def abort_request(self, request_id: str) -> Any:
        """The message that has a request ended."""

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> EngineCall:
        """Start a generation, as TrtllmClient.generate does."""
        rank, others = self.address_rank(metadata or ())
        try:
            asked, body = self.translate(request, rank)
        except InvalidRequestError as error:
            return FailedCall(_failure(error))
        sent = self._channel.stream(self._generate, body, timeout=timeout, metadata=others)
        reader = self.reader(asked)
        name: str = asked.message.request_id
        call = self._running[name] = TranslatedCall(name, sent, reader, self)
        return call

    def address_rank(self, metadata: Metadata) -> tuple[int | None, Metadata]:
        """The rank of a call for its request, and what else goes with it."""
        rank = next((int(value) for key, value in metadata if key == DP_RANK_KEY), None)
        return rank, tuple(each for each in metadata if each[0] != DP_RANK_KEY)

    def reader(self, asked: Asked) -> Reader:
        """Of the answer to a request."""
        return AnswerReader(asked, self.messages.GenerateResponse, counts_all=self.counts_all)

    def forget(self, call: TranslatedCall) -> None:
        """It has ended."""
        if self._running.get(call.name) is call:
            del self._running[call.name]

    async def embed(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> bytes:
        try:
            message = pb.EmbedRequest.FromString(request)
        except DecodeError:
            raise InvalidRequestError("the request is no trtllm.EmbedRequest") from None
        asked = self.messages.EmbedRequest(request_id=message.request_id)
        asked.tokenized.input_ids.extend(message.tokenized.input_token_ids)
        answer = await super().embed(asked.SerializeToString(), timeout=timeout, metadata=metadata)
        found = read_answer("Embed", self.messages.EmbedResponse, answer)
        data: bytes = pb.EmbedResponse(
            request_id=message.request_id,
            embedding=found.embedding,
            prompt_tokens=found.prompt_tokens,
        ).SerializeToString()
        return data

    async def check_health(self, *, timeout: float) -> EngineIdentity:
        """Ask whether the engine is well; WorkerError with its own words if it says it is not."""
        answer = await self.ask("HealthCheck", timeout)
        if not answer.healthy:
            raise WorkerError(f"engine's health check answers {answer.message!r}")
        return EngineIdentity()

    async def describe(self, *, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        """Ask for everything an engine says of itself. What it does not implement stays unknown."""
        identity, facts = await self.ask_facts(timeout)
        return identity, await with_stated(
            facts, self._transfer, self._parallel, self._policy, timeout=timeout
        )

    async def prefetch(
        self, request: bytes, *, timeout: float, metadata: Metadata | None = None
    ) -> int | None:
        """Such engines have no call for it."""
        return None

    async def clear_kv_blocks(self, *, timeout: float) -> None:
        """Have the engine empty its cache; EngineCallError, with its words, if it does not."""
        request = common_pb.FlushCacheRequest(timeout_s=max(0.0, timeout - FLUSH_MARGIN_S))
        _, answer = await self._ask("FlushCache", request, common_pb.FlushCacheResponse, timeout)
        if not answer.success:
            raise _failure(WorkerError(f"not cleared: {answer.message}"))

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        """Stop a request: (whether it ran there, the engine's words). Unknown ids are no error."""
        running = self._running.get(request_id)
        if running is None:
            return False, f"request {request_id} not found"
        running.aborted = True
        request = self.abort_request(request_id)
        _, answer = await self._ask("Abort", request, self.messages.AbortResponse, timeout)
        return True, getattr(answer, "message", "") or "the engine has the abort"

    async def close(self) -> None:
        """Close the channel; what still runs over it is cancelled. Idempotent."""
        for call in list(self._running.values()):
            call.cancel()
        await super().close()

    async def ask(self, method: str, timeout: float) -> Any:
        """The answer to a question without words."""
        return (await self._ask(method, *self._words(method), timeout))[1]

    async def ask_if_known(self, method: str, timeout: float) -> Any:
        """The same; an empty answer of an engine that does not implement the method."""
        request, response = self._words(method)
        answer = (await self._ask_if_known(method, request, response, timeout))[1]
        return response() if answer is None else answer

    def _words(self, method: str) -> tuple[Any, Any]:
        """An empty question, and the type of its answer."""
        messages = self.messages
        return getattr(messages, f"{method}Request")(), getattr(messages, f"{method}Response")


def _failure(error: Exception) -> Exception:
    found = failure_of(error)
    assert isinstance(found, Exception)
    return found


def stated_features(settings: Iterable[tuple[str, int]]) -> list[str]:
    """Settings of an engine as facts_of reads them; 0: it does not say."""
    return [f"{name}={value}" for name, value in settings if value > 0]


def stated_ranks(number: object) -> int | None:
    """The ranks that an engine says it has; None: it says none, or more than there can be."""
    return number if isinstance(number, int) and 1 <= number <= MAX_RANKS else None
