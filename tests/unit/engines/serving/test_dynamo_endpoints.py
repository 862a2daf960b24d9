"""What our engines answer over Dynamo's request plane."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from dynamo_router.engines.serving.dynamo_endpoints import DynamoEndpoints
from dynamo_router.engines.serving.engine import AnswerPart
from dynamo_router.runtime.components import EndpointName


class Server:
    """Keeps what it is to serve."""

    port = 1

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add(self, path: str, handler: Any) -> None:
        self.handlers[path] = handler


async def answered(max_tokens: int, *parts: AnswerPart) -> list[Any]:
    async def generate(request: Any) -> AsyncIterator[AnswerPart]:
        for part in parts:
            yield part

    server, engine = Server(), SimpleNamespace(generate=generate)
    name = EndpointName("dynamo", "prefill", "generate")
    DynamoEndpoints(server, "127.0.0.1", name, 1, engine, ())  # type: ignore[arg-type]  # doubles
    (handler,) = (each for path, each in server.handlers.items() if path.endswith("/generate"))
    body = {"token_ids": [3, 4], "stop_conditions": {"max_tokens": max_tokens}}
    return [each["data"] async for each in handler(body, SimpleNamespace(id="r1"))]


async def test_a_prefills_parcel_is_in_its_first_message() -> None:
    """Dynamo's frontend looks for it nowhere else."""
    last = AnswerPart([], finish_reason="length", handoff=b'{"key": 7}')
    (message,) = await answered(1, AnswerPart([11]), last)
    assert message["disaggregated_params"] == {"key": 7}
    assert (message["token_ids"], message["finish_reason"]) == ([11], "length")
    assert message["completion_usage"]["completion_tokens"] == 1


async def test_other_answers_come_token_by_token() -> None:
    found = await answered(2, AnswerPart([11]), AnswerPart([12]), AnswerPart([], finish_reason="x"))
    assert [each["token_ids"] for each in found] == [[11], [12], []]
