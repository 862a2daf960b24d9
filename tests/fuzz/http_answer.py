"""What a fuzzer feeds as the body of an engine's answer over HTTP, and what must hold of it."""

import json
from typing import Any

from support.servers.http_engine import event, part, usage

from dynamo_router.base.errors import WorkerError
from dynamo_router.workers.dialects.openai_answers import MissingTokens, reader_of
from dynamo_router.workers.dialects.openai_requests import EngineKind
from dynamo_router.workers.dialects.sse import EventReader
from dynamo_router.workers.failures import EngineCallError
from dynamo_router.workers.trtllm_proto import pb

_MOST_TOKENS, _MOST_BYTES = 8, 4096


def check_http_answer(data: bytes) -> None:
    """As an event stream, in one piece and byte by byte, of either kind of engine: chunks that say
    what the whole says, no more tokens than were asked for, or an error that is documented."""
    for kind in EngineKind:
        whole = _outcome(kind, [data])
        assert whole == _outcome(kind, [data[at : at + 1] for at in range(len(data))])


def _outcome(kind: EngineKind, pieces: list[bytes]) -> object:
    request = pb.GenerateRequest(request_id="r", max_tokens=_MOST_TOKENS, streaming=True)
    request.tokenized.input_token_ids.extend(range(5))
    events, reader = EventReader(_MOST_BYTES), reader_of(kind, request)
    told: list[int] = []
    try:
        for each in (each for piece in pieces for each in events.feed(piece)):
            try:
                message = reader.read(each)
            except MissingTokens as missing:
                message = reader.fill(list(missing.text.encode()))
            if message is not None:
                told += pb.GenerateResponse.FromString(message).chunk.token_ids
            if reader.done:
                break
        last = pb.GenerateResponse.FromString(reader.complete()).complete
    except OverflowError:
        return OverflowError
    except (WorkerError, EngineCallError) as error:
        return type(error), told
    assert told == list(last.output_token_ids) and last.cached_tokens <= last.prompt_tokens == 5
    assert len(told) <= _MOST_TOKENS or kind is EngineKind.LLAMA  # a text's own tokens may be more
    return last.SerializeToString()


def answer_seeds() -> list[bytes]:
    """Whole answers of both kinds, and one that tells of an error."""

    def llama(**said: Any) -> bytes:
        return event({"content": "", "tokens": [], "stop": False, **said})

    return [
        event(part(1, 2)) + event(part(reason="stop")) + event(usage(3)) + event(b"[DONE]"),
        b": hello\r\nid: 3\r\ndata: " + json.dumps(part(1, reason="length")).encode() + b"\r\n\r\n",
        llama(content="a", tokens=[97], tokens_predicted=1)
        + llama(content="\u6f22", tokens=[162], tokens_predicted=4, timings={"cache_n": 2})
        + llama(stop=True, stop_type="eos", tokens_predicted=4),
        event({"error": {"message": "full", "code": 503}}),
    ]
