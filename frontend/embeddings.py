"""POST /v1/embeddings, where the engines embed: a vector for each text."""

import base64
from typing import Any, Literal

import msgspec
import numpy as np

from ..base.account import current_account
from ..base.errors import StatusCode
from ..base.request_record import Generation
from ..process.supervised import all_done
from ..server.call_limits import CallLimits
from ..server.dispatch import Dispatcher
from ..transport.http1 import HttpCall, answer_whole
from ..workers.dialects import encode_generate
from ..workers.failures import EngineCallError
from ..workers.trtllm_proto import pb
from .engine_requests import PromptReader, Tokens, engine_message
from .openai import BAD_BODY, ApiError, bad_body
from .processor import Tenant


class EmbeddingRequest(msgspec.Struct):
    """Of the API; a model has vectors of one length, so `dimensions` is refused."""

    model: str
    input: msgspec.Raw
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class Embeddings:
    """Asks an engine for each input, all at the same time; the first error ends them all."""

    def __init__(self, dispatcher: Dispatcher, prompts: PromptReader, calls: CallLimits) -> None:
        self._dispatcher = dispatcher
        self._prompts, self._calls = prompts, calls

    async def answer(
        self, call: HttpCall, request: EmbeddingRequest, model: str, tenant: Tenant
    ) -> None:
        """Answer a request to the model of this name."""
        if request.dimensions is not None:
            text = "dimensions is not supported: vectors have the model's length"
            raise ApiError(400, text, param="dimensions")
        inputs: list[Tokens] = [call.ids]
        if call.ids is None:
            inputs = await self._prompts.read(request.input, "input", tenant)
        for number, each in enumerate(inputs):
            if not len(each):
                raise ApiError(400, f"input[{number}] is empty: give it a text", param="input")
        with self._calls.requests.held(current_account(), len(inputs) - 1):
            found = await self._embed(inputs, call.request_id)
        tokens = sum(
            each.prompt_tokens or len(ids) for each, ids in zip(found, inputs, strict=True)
        )
        call.record.generation = lambda: Generation(tokens, 0, 0, None, ())
        vectors = [each.embedding for each in found]
        if request.encoding_format == "base64":
            written = [b'"%b"' % _as_base64(each) for each in vectors]
        else:
            written = await self._prompts.as_json(vectors)
        data = (
            b'{"object":"embedding","index":%d,"embedding":%b}' % each
            for each in enumerate(written)
        )
        body = {
            "object": "list",
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        head = msgspec.json.encode(body)[:-1]
        await answer_whole(call, b'%b,"data":[%b]}' % (head, b",".join(data)), {})

    async def _embed(self, inputs: list[Tokens], request_id: str) -> list[Any]:
        try:
            return await all_done(
                self._embed_one(ids, f"{request_id}-{index}") for index, ids in enumerate(inputs)
            )
        except EngineCallError as error:
            if error.code() is not StatusCode.UNIMPLEMENTED:
                raise
            text = "this model's engines make no embeddings"
            raise ApiError(404, text, code="no_embeddings") from None

    async def _embed_one(self, ids: Tokens, request_id: str) -> Any:
        # Of an EmbedRequest both fields are those of a GenerateRequest.
        message, _ = encode_generate(request_id, 0, b"", np.ascontiguousarray(ids, np.uint32))
        answer = await self._dispatcher.plain.embed(message, None)
        return engine_message(pb.EmbedResponse, answer)


def read_embedding_request(body: bytes) -> EmbeddingRequest:
    """ApiError 400 if it is none."""
    try:
        return msgspec.json.decode(body, type=EmbeddingRequest)
    except BAD_BODY as error:
        raise bad_body(error) from None


def _as_base64(vector: Any) -> bytes:
    """Little-endian floats of 32 bits, as OpenAI's own client asks for them."""
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes())
