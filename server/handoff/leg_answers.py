"""What the answers of two legs are to the client of one request. Pure."""

from typing import Any

from google.protobuf.message import DecodeError

from ...workers.dialects import split_tokens
from ...workers.handoffs import MOST_PARCEL_BYTES, foreign_host
from ...workers.trtllm_proto import pb


def read(message: bytes) -> Any:
    """A GenerateResponse; an empty one for what is none."""
    try:
        return pb.GenerateResponse.FromString(message)
    except DecodeError:
        return pb.GenerateResponse()


def is_empty(answer: Any) -> bool:
    """Whether an answer that begins with this message ends with it, and has nothing: an engine
    that ran out of patience with its partner says so by a success."""
    last = answer.complete
    return bool(
        answer.HasField("complete")
        and not last.output_token_ids
        and last.finish_reason not in ("stop", "end_id", "stop_words", "cancelled")
    )


def as_whole(parts: list[Any], own_id: str, request: bytes) -> list[bytes]:
    """A prefill worker's messages for the client of the whole request. One that streams gets the
    tokens in chunks, also of an engine that is asked for the prompt as a whole."""
    last = parts[-1]
    if len(parts) == 1 and last.complete.output_token_ids and _streams(request):
        first = pb.GenerateResponse()
        first.chunk.token_ids.extend(last.complete.output_token_ids)
        first.chunk.prompt_tokens = last.complete.prompt_tokens
        first.chunk.completion_tokens = last.complete.completion_tokens
        first.chunk.cached_tokens = last.complete.cached_tokens
        parts = [first, last]
    for part in parts:
        part.DiscardUnknownFields()
        part.request_id = own_id
    return [part.SerializeToString() for part in parts]


def first_of(parts: list[Any], own_id: str) -> Any | None:
    """The chunk with the one token in a prefill worker's messages; None if it is not in them."""
    whole = parts[-1].complete
    chunks = [part.chunk for part in parts if part.chunk.token_ids]
    found = chunks[0] if chunks else whole
    tokens = found.token_ids if chunks else found.output_token_ids
    if len(chunks) > 1 or len(tokens) != 1:
        return None
    first = pb.GenerateResponse(request_id=own_id)
    first.chunk.token_ids.extend(tokens)
    first.chunk.prompt_tokens = found.prompt_tokens or whole.prompt_tokens
    first.chunk.completion_tokens = 1
    return first


def after_first(answer: Any, message: bytes, token: int) -> bytes | None:
    """A decode worker's first message for a client that has its first token already; None if it
    has nothing else. ValueError if it begins with another one."""
    is_chunk = answer.HasField("chunk")
    tokens = answer.chunk.token_ids if is_chunk else answer.complete.output_token_ids
    if not tokens or tokens[0] != token:
        raise ValueError("it did not go on from the token that was handed to it")
    if not is_chunk:  # the whole of the answer
        return message
    if len(tokens) == 1:
        return None
    del answer.chunk.token_ids[0]
    body: bytes = answer.SerializeToString()
    return body


def _streams(request: bytes) -> bool:
    rest, *_ = split_tokens(request)
    return bool(pb.GenerateRequest.FromString(rest).streaming)


def as_one(answer: Any, message: bytes, cached_tokens: int, own_id: str, attempt_id: str) -> bytes:
    """A decode worker's message as that of one worker for the whole request."""
    which = answer.WhichOneof("response")
    if which not in ("chunk", "complete"):
        return message
    part = getattr(answer, which)
    if part.cached_tokens == cached_tokens and own_id == attempt_id:
        return message
    part.cached_tokens = cached_tokens
    answer.request_id = own_id
    body: bytes = answer.SerializeToString()
    return body


def why_refused(parcel: bytes | None, address: str) -> str | None:
    """Why a parcel cannot go on; nothing of its contents is in it."""
    if parcel is None:
        return "it handed nothing over: it serves no such requests"
    if len(parcel) > MOST_PARCEL_BYTES:
        return f"it handed {len(parcel)} bytes over: more than {MOST_PARCEL_BYTES}"
    if foreign_host(parcel, address) is not None:
        return "what it handed over names another host than its own"
    return None
