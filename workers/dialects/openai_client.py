"""The client of an engine that speaks OpenAI's HTTP: llama.cpp, vLLM, SGLang, TensorRT-LLM."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from urllib.parse import urlsplit

import aiohttp
import msgspec
from google.protobuf.message import DecodeError

from ...base.errors import UNREADABLE, InvalidRequestError, StatusCode, WorkerError
from ...process.supervised import is_cancelled
from ...transport.security import ClientTls, EngineKey
from ..channels import ConnectionPolicy, Metadata
from ..engine_facts import EngineFacts
from ..failures import EngineCallError, Origin
from ..transfer_facts import TransferFacts
from ..trtllm_client import EngineIdentity
from ..trtllm_proto import pb
from .engine_client import DP_RANK_KEY, AnyJson
from .engine_http import NOT_THERE, UNTOLD, EngineHttp
from .failed_call import FailedCall, unimplemented
from .openai_answers import AnswerReader, MissingTokens, TokenId, reader_of
from .openai_facts import completion_facts, llama_facts, model_in, sglang_facts
from .openai_requests import EngineKind, request_of
from .pumped_call import PumpedCall, end_calls
from .stated import with_stated

_PASSED_ON = ("traceparent", "tracestate")
_RANK_HEADER = "X-data-parallel-rank"
_STREAM, _WHOLE = "text/event-stream", "application/json"
_PAGES = ("/metrics", "/version")


class OpenAiClient:
    """Calls one engine, token ids to token ids. See TrtllmClient for what each call is.

    Which engine it is, and so how it is asked, is known once it was described. `block_size` is the
    router's; `transfer` and `parallel` are what its URL says of its hand-offs.
    """

    dialect = "openai"

    def __init__(
        self,
        address: str,
        connection: ConnectionPolicy | None = None,
        tls: ClientTls | None = None,
        tls_name: str | None = None,
        *,
        block_size: int = 1,
        key: EngineKey | None = None,
        transfer: TransferFacts = TransferFacts(),  # noqa: B008  # it is frozen
        parallel: tuple[int, int] = (0, 0),
    ) -> None:
        self.address = address
        self._transfer, self._parallel = transfer, parallel
        self._host = urlsplit(f"//{address}").hostname or ""
        self._policy = connection or ConnectionPolicy()
        self._http = EngineHttp(address, self._policy, tls, tls_name, key)
        self._block_size = block_size
        self._kind, self._model = EngineKind.COMPLETIONS, ""
        self._calls: set[PumpedCall] = set()
        self._running: dict[str, _Running] = {}

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> PumpedCall:
        """Start a generation, as TrtllmClient.generate does."""
        headers = _headers(metadata or ())
        return PumpedCall(lambda: self._messages(request, headers), timeout, self._calls)

    async def embed(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> bytes:
        """Ask for the embedding of a prompt; engines without are UNIMPLEMENTED."""
        message = _embed_request(request)
        body: dict[str, object] = {"input": list(message.tokenized.input_token_ids)}
        if self._model:
            body["model"] = self._model
        limit = aiohttp.ClientTimeout(total=timeout)
        encoded = msgspec.json.encode(body)
        async with self._http.opened(
            "POST", "/v1/embeddings", encoded, headers=_headers(metadata or ()), timeout=limit
        ) as response:
            return _embedding(message, await self._http.whole(response))

    async def forward(
        self,
        path: str,
        body: AnyJson,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> bytes:
        """See ForwardingClient."""
        if self._model:
            body = {**body, "model": msgspec.Raw(msgspec.json.encode(self._model))}
        limit = aiohttp.ClientTimeout(total=timeout)
        encoded = msgspec.json.encode(body)
        async with self._http.opened(
            "POST", path, encoded, headers=_headers(metadata or ()), timeout=limit
        ) as response:
            return await self._http.whole(response)

    def get_tokenizer(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> FailedCall:
        text = "an engine that speaks OpenAI's HTTP does not give a tokenizer away"
        return FailedCall(unimplemented(text))

    async def check_health(self, *, timeout: float) -> EngineIdentity:
        """Ask /health, or /v1/models where there is no such thing. WorkerError with the engine's
        own words, or EngineCallError, if it is not well."""
        try:
            try:
                await self._http.ask("GET", "/health", timeout=timeout)
            except EngineCallError as error:
                if error.code() not in NOT_THERE:
                    raise
                await self._http.ask("GET", "/v1/models", timeout=timeout)
        except EngineCallError as error:
            if error.origin is not Origin.ENGINE:
                raise
            raise WorkerError(error.details()) from None
        return EngineIdentity()

    async def describe(self, *, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        """Ask for the model and its limits. What the engine does not tell stays unknown."""
        model = model_in(await self._http.ask("GET", "/v1/models", timeout=timeout))
        self._kind, self._model = model.kind, model.id
        # Each connection has a thread of llama.cpp's few while it is open, and may be closed at
        # any moment after an answer.
        self._http.keeps_connections = self._kind is not EngineKind.LLAMA
        if self._kind is EngineKind.LLAMA:
            props = await self._page("/props", timeout)
            return EngineIdentity(), llama_facts(model, props)
        if self._kind is EngineKind.SGLANG:
            for path in ("/server_info", "/get_server_info"):  # the second of older ones
                if (info := await self._page(path, timeout)) is not None:
                    break
            facts = sglang_facts(model, info, self._host, self._block_size)
        else:
            metrics, version = [await self._page(path, timeout) for path in _PAGES]
            facts = completion_facts(model, metrics, self._block_size, version)
        facts = await with_stated(
            facts, self._transfer, self._parallel, self._policy, timeout=timeout
        )
        return EngineIdentity(), facts

    async def _page(self, path: str, timeout: float) -> bytes | None:
        """A page of the engine's; None where it has none, or keeps it to itself."""
        try:
            return await self._http.ask("GET", path, timeout=timeout)
        except EngineCallError as error:
            if error.code() not in UNTOLD:
                raise
            return None

    async def prefetch(
        self, request: bytes, *, timeout: float, metadata: Metadata | None = None
    ) -> int | None:
        """Such engines have no call for it."""
        return None

    async def clear_kv_blocks(self, *, timeout: float) -> None:
        """Such engines have no call for it that all of them know."""
        raise unimplemented("an engine that speaks OpenAI's HTTP is asked for no cache")

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        """End a call by closing its connection; its answer ends with what there is of it."""
        running = self._running.get(request_id)
        if running is None:
            return False, f"request {request_id} not found"
        running.abort()
        return True, "its connection was closed"

    async def close(self) -> None:
        """Cancel what still runs, and close the connections. Idempotent."""
        await end_calls(self._calls)
        await self._http.close()

    async def _messages(
        self, request: bytes, headers: dict[str, str]
    ) -> AsyncGenerator[bytes, None]:
        kind = self._kind
        message, body = request_of(request, kind, self._model)
        rank = headers.get(_RANK_HEADER)
        if rank is not None and kind is EngineKind.SGLANG:
            body["routed_dp_rank"] = int(rank)
        name: str = message.request_id
        if name.isascii() and name.isprintable():
            headers = {**headers, "X-Request-Id": name}
        reader = reader_of(kind, message)
        # A list for each token of the prompt would hold the event loop.
        scores = message.output_config.prompt_logprobs > 0 and not message.streaming
        running = self._running[name] = _Running()
        try:
            async with self._http.opened(
                "POST", kind.path, msgspec.json.encode(body), headers=headers
            ) as response:
                running.response = response
                wanted = _STREAM if message.streaming else _WHOLE
                if response.content_type != wanted:
                    raise WorkerError(f"its answer is {response.content_type}, not {wanted}")
                if message.streaming:
                    async with aclosing(self._http.events(response)) as events:
                        async for data in events:
                            answer = await self._read(reader, data)
                            if answer is not None:
                                yield answer
                            if reader.done:
                                break
                else:
                    answer = await self._http.whole(response)
                    if scores:
                        await asyncio.to_thread(reader.read, answer)
                    else:
                        await self._read(reader, answer)
                yield await asyncio.to_thread(reader.complete) if scores else reader.complete()
                await self._http.drain(response)
                return
        except (EngineCallError, asyncio.CancelledError):
            if not running.ended():
                raise
        finally:
            if self._running.get(name) is running:
                del self._running[name]
        yield reader.answer.complete("cancelled")

    async def _read(self, reader: AnswerReader, data: bytes) -> bytes | None:
        try:
            return reader.read(data)
        except MissingTokens as missing:
            return reader.fill(await self._tokens_of(missing.text))

    async def _tokens_of(self, text: str) -> list[int]:
        """The tokens of a text, by llama.cpp's own tokenizer."""
        body = msgspec.json.encode({"content": text, "add_special": False})
        answer = await self._http.ask(
            "POST", "/tokenize", body, timeout=self._policy.connect_timeout_s
        )
        try:
            tokens: list[int] = msgspec.json.decode(answer, type=_Tokens).tokens
        except UNREADABLE as error:
            raise WorkerError(f"its /tokenize cannot be read: {error}") from None
        return tokens


class _Running:
    """A generation that may be aborted."""

    def __init__(self) -> None:
        self.aborted = False
        self.response: aiohttp.ClientResponse | None = None
        self._task = asyncio.current_task()

    def abort(self) -> None:
        if self.aborted:
            return
        self.aborted = True
        if self.response is not None:
            self.response.close()
        elif self._task is not None:
            self._task.cancel()

    def ended(self) -> bool:
        """Whether its reader was ended by that, and by nothing else. Asked once, by the reader."""
        if self.aborted and self.response is None and self._task is not None:
            self._task.uncancel()
        return self.aborted and not is_cancelled()


class _Tokens(msgspec.Struct):
    tokens: list[TokenId]


class _Embedded(msgspec.Struct):
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedded]


def _embed_request(request: bytes) -> pb.EmbedRequest:
    try:
        return pb.EmbedRequest.FromString(request)
    except DecodeError:
        raise InvalidRequestError("the request is no trtllm.EmbedRequest") from None


def _embedding(message: pb.EmbedRequest, body: bytes) -> bytes:
    with suppress(*UNREADABLE):
        found = msgspec.json.decode(body, type=_Embeddings).data
        if len(found) == 1:
            answer: bytes = pb.EmbedResponse(
                request_id=message.request_id,
                embedding=found[0].embedding,
                prompt_tokens=len(message.tokenized.input_token_ids),
            ).SerializeToString()
            return answer
    text = "its embedding cannot be read"
    raise EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, text)


def _headers(metadata: Metadata) -> dict[str, str]:
    """Of a call's metadata, what an engine over HTTP gets."""
    headers = {}
    for key, value in metadata:
        if key in _PASSED_ON:
            headers[key] = str(value)
        elif key == DP_RANK_KEY:
            headers[_RANK_HEADER] = str(value)
    return headers
