"""POST /v1/rerank, /v1/score, /classify and /pooling, passed to engines over HTTP: the engine reads
the request and makes the answer, but for the model's name."""

import msgspec

from ..base.errors import StatusCode
from ..process.off_loop import OffLoop
from ..server.dispatch import Dispatcher
from ..transport.http1 import HttpCall, answer_whole
from ..workers.dialects import AnyJson
from ..workers.failures import EngineCallError
from .openai import BAD_BODY, LONG_BODY, ApiError, bad_body

PASSED_ROUTES = (
    "POST /v1/rerank",
    "POST /v2/rerank",
    "POST /rerank",
    "POST /v1/score",
    "POST /score",
    "POST /classify",
    "POST /pooling",
)
_ANY = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WITHOUT = (StatusCode.UNIMPLEMENTED, StatusCode.NOT_FOUND)
_SECONDS_PER_BYTE = 1e-8


class PassedOn:
    """Has one engine of a model answer such a request."""

    def __init__(self, dispatcher: Dispatcher, off_loop: OffLoop) -> None:
        self._dispatcher, self._off_loop = dispatcher, off_loop

    async def answer(self, call: HttpCall, path: str, model: str) -> None:
        """`path` is the engine's, `model` the name for clients. ApiError 404 where the engines have
        no such route."""
        try:
            body = await self._read(call.body)
        except BAD_BODY as error:
            raise bad_body(error) from None
        try:
            found = await self._dispatcher.plain.forward(path, body, None)
        except EngineCallError as error:
            if error.code() not in _WITHOUT:
                raise
            raise ApiError(404, f"this model's engines have no {path}") from None
        try:
            body = await self._read(found)
        except BAD_BODY as error:
            raise ApiError(500, f"the engine's answer cannot be read: {error}") from None
        if "model" in body:
            body["model"] = msgspec.Raw(msgspec.json.encode(model))
        await answer_whole(call, msgspec.json.encode(body), {})

    async def _read(self, body: bytes) -> AnyJson:
        """Its parts stay as they are."""
        if len(body) <= LONG_BODY:
            return _ANY.decode(body)
        size = len(body)
        return await self._off_loop.run(
            lambda: _ANY.decode(body), size=size, seconds=size * _SECONDS_PER_BYTE
        )
