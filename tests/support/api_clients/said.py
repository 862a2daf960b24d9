"""What an engine of a frontend says, and what it was asked, as text."""

from collections.abc import AsyncIterator
from typing import Any

from support.fake_engine import FakeEngine, chunk, complete
from support.servers.openai_serving import Served


async def say(
    served: Served, engine: FakeEngine, text: str, reason: str = "stop", stop: str = ""
) -> None:
    """Have the engine say this text, a token at a time, and end for this reason."""
    body = {"prompt": text, "add_special_tokens": False}
    ids = (await served.post("/tokenize", body))[1]["tokens"]

    async def script(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.streaming:
            for token_id in ids:
                yield chunk(request, token_id)
        last = complete(request, *ids)
        last.complete.finish_reason = reason
        if stop:
            last.complete.matched_stop_str = stop
        yield last

    engine.script = script


async def last_prompt(served: Served, engine: FakeEngine) -> str:
    """Of the engine's last request."""
    ids = list(engine.requests[-1].tokenized.input_token_ids)
    text: str = (await served.post("/detokenize", {"tokens": ids}))[1]["prompt"]
    return text
