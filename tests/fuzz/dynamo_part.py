"""What a fuzzer feeds as a data frame of a Dynamo worker's answer, and what must hold of it."""

from typing import Any

import msgspec
from oracles.generate import written_chunk, written_complete

from dynamo_router.base.errors import WorkerError
from dynamo_router.runtime.components import NOTHING, data_of
from dynamo_router.runtime.request_planes import RequestError, part_decoders
from dynamo_router.workers.dialects.dynamo_messages import PART_DECODERS, AnswerWriter, PlainPart
from dynamo_router.workers.trtllm_proto import pb

_UNTYPED = part_decoders(Any)["msgpack"]
_TYPED = PART_DECODERS["msgpack"]


def check_dynamo_part(data: bytes) -> None:
    """Decoded as a part of a token stream it means what it means decoded as anything, or it is
    refused as documented; its messages are those of protobuf's library, to the byte."""
    try:
        untyped = _UNTYPED(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    typed = _TYPED(data)
    assert typed.complete_final == untyped.complete_final
    if untyped.data is not msgspec.UNSET:
        found = typed.data.data if type(typed.data) is PlainPart else typed.data
        assert _messages(found) == _messages(untyped.data)


def _messages(part: Any) -> object:
    """What a part makes, and the end of the answer after it; the kind of its error if it fails."""
    request = pb.GenerateRequest(request_id="r", streaming=True)
    writer = AnswerWriter(request, 5)
    try:
        data = data_of(part)
        chunk = None if data is NOTHING else writer.on_part(data)
        last = writer.complete()
    except (WorkerError, RequestError) as error:
        return type(error)
    whole = pb.GenerateResponse.FromString(last).complete
    tokens, cached = list(whole.output_token_ids), whole.cached_tokens
    which = whole.WhichOneof("matched_stop")
    matched = None if which is None else getattr(whole, which)
    assert chunk == (written_chunk("r", tokens, 5, len(tokens), cached) if tokens else None)
    assert last == written_complete("r", tokens, whole.finish_reason, matched, 5, cached)
    return chunk, last


def part_seeds() -> list[bytes]:
    """Parts as a worker sends them, plain and rich, an error, the end, and parts that are none."""
    usage = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
    ends: list[dict[str, Any]] = [
        {"token_ids": [1, 300, 2**32 - 1], "finish_reason": "eos", "stop_reason": 2},
        {"token_ids": [], "finish_reason": "length", "completion_usage": usage, "text": None},
        {"token_ids": [7], "finish_reason": "stop", "stop_reason": "é", "log_probs": [-0.5]},
        {"token_ids": [2**32], "finish_reason": "stop"},
        {"token_ids": [], "finish_reason": {"error": "out of memory"}},
    ]
    datas: list[object] = [
        *({"data": end} for end in ends),
        {"data": ends[0], "id": "1", "event": None, "comment": ["a"], "error": None},
        {"data": None, "event": "error", "comment": ["no"]},
        ends[0],
        {"data": ends[0], "later": 1},
        5,
    ]
    pack = msgspec.msgpack.encode
    parts = [pack({"data": data, "complete_final": False}) for data in datas]
    return [*parts, pack({"complete_final": True}), pack({"data": 1, "complete_final": True})]
