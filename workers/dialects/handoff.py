"""What disaggregated serving writes into the messages of trtllm.TrtllmService. Pure.

A prefill worker computes a prompt and hands over what a decode worker needs to go on with it. The
request says its phase in `disaggregated_params`: CONTEXT_ONLY for the prompt alone, GENERATION_ONLY
for the rest, with the handoff in `context_phase_params.kv_cache_blocks`: for engines of other
dialects the fields of their own requests, as JSON, of either leg. The protocol's answers
have no field for a handoff, and TensorRT-LLM's server gives none: here it stands in a field beyond
those of the protocol, which other readers skip. Only workers read it.
"""

from collections.abc import Collection
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ...base.errors import UNREADABLE, InvalidRequestError
from ..trtllm_proto import length_delimited, pb
from ._token_ids import split_tokens

CONTEXT_ONLY = pb.DisaggregatedParams.REQUEST_TYPE_CONTEXT_ONLY
GENERATION_ONLY = pb.DisaggregatedParams.REQUEST_TYPE_GENERATION_ONLY
HANDOFF_FIELD = 1000
"""Of a GenerateResponse: the handoff, bytes."""


def for_prefill(request: bytes, fields: bytes = b"", *, limited: bool = True) -> bytes:
    """A serialized GenerateRequest as the prefill worker gets it: one token, nothing after it.

    `fields`: what it says in the engine's own words, JSON. Not `limited`: the engine ends after the
    prompt by itself. Of a field that comes twice the last one counts, so the rest stays as it is.
    """
    more = pb.GenerateRequest(streaming=True)
    if limited:
        rest, *_ = split_tokens(request)
        least = pb.GenerateRequest.FromString(rest).sampling_config.min_tokens
        more.max_tokens = 1
        # Else a token at which the engine may stop would be all of an answer that has more.
        more.sampling_config.min_tokens = min(1, least)
    more.disaggregated_params.request_type = CONTEXT_ONLY
    if fields:
        more.disaggregated_params.context_phase_params.kv_cache_blocks = fields
    return request + _serialized(more)


def for_decode(request: bytes, handoff: bytes) -> bytes:
    """The same request as the decode worker gets it, with what the prefill worker handed over."""
    more = pb.GenerateRequest()
    more.disaggregated_params.request_type = GENERATION_ONLY
    more.disaggregated_params.context_phase_params.kv_cache_blocks = handoff
    return request + _serialized(more)


def for_reading(request: bytes) -> bytes:
    """The same for a decode worker that is only to read the prompt: it makes one token."""
    more = pb.GenerateRequest(max_tokens=1)
    more.sampling_config.min_tokens = 0
    return request + _serialized(more)


def with_handoff(message: bytes, handoff: bytes) -> bytes:
    """A serialized GenerateResponse that also has a handoff."""
    return message + length_delimited(HANDOFF_FIELD, handoff)


def handoff_of(message: bytes) -> bytes | None:
    """The handoff in a serialized GenerateResponse; None if there is none, or it is no such."""
    try:
        fields = UnknownFieldSet(pb.GenerateResponse.FromString(message))
    except DecodeError:
        return None
    known = (fields[at] for at in range(len(fields)))
    found = [field.data for field in known if field.field_number == HANDOFF_FIELD]
    return found[-1] if found and isinstance(found[-1], bytes) else None


def given_handoff(request: Any) -> bytes | None:
    """What a GenerateRequest brings from its prefill worker; None if it is not in that phase.

    InvalidRequestError if it says that it is and brings nothing.
    """
    params = request.disaggregated_params
    if params.request_type != GENERATION_ONLY:
        return None
    handoff: bytes = params.context_phase_params.kv_cache_blocks
    if not handoff:
        text = "a generation without its prompt's handoff"
        raise InvalidRequestError(text, field="disaggregated_params")
    return handoff


def leg_fields(request: Any, known: Collection[str], engine: str) -> dict[str, Any]:
    """What a GenerateRequest that is a leg of another says to its engine in that engine's words;
    nothing if it is none.

    InvalidRequestError if that is not readable, or none of the fields that are `known`.
    """
    if given_handoff(request) is None and request.disaggregated_params.request_type != CONTEXT_ONLY:
        return {}
    given = request.disaggregated_params.context_phase_params.kv_cache_blocks
    try:
        fields = msgspec.json.decode(given) if given else {}
    except UNREADABLE:
        fields = None
    if not isinstance(fields, dict) or not fields.keys() <= set(known):
        raise InvalidRequestError(f"the prompt's handoff is none of {engine}")
    return fields


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
