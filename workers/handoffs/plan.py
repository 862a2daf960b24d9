"""HandoffPlan: what each leg of a request is sent, and what may be done while they run. Pure."""

import enum
from typing import NamedTuple

from google.protobuf.message import DecodeError

from ..dialects import for_decode, for_prefill, split_tokens
from ..trtllm_proto import pb

RELAYING = ("trtllm", "dynamo", "openai")
"""Dialects whose prefill workers answer with a parcel, vLLM over HTTP among them. TensorRT-LLM's
own gRPC server gives none: there a prefill fails with that word."""
LEASE_S = 30.0
"""How long a prefill worker keeps what it computed, unless its engine says otherwise."""


class Shape(enum.Enum):
    """The order of the legs."""

    RELAY = "relay"
    """prefill first; its answer has a parcel, which the decode worker gets as it is"""


class HandoffPlan(NamedTuple):
    """One attempt of one request. Requests are serialized GenerateRequests."""

    shape: Shape
    prefill: bytes
    """for the prefill worker"""
    request: bytes
    """as it came, for the decode worker once there is a parcel"""
    is_whole: bool
    """the prefill's one token is the whole answer: there is no parcel and no second leg"""
    lease_s: float = LEASE_S
    must_dispatch_decode: bool = False
    """a prefill that was computed is held until its reader comes, even where the client has gone"""
    abort_safe: bool = True
    """a prefill may be aborted at any moment"""

    def decode(self, parcel: bytes) -> bytes:
        """For the decode worker."""
        return for_decode(self.request, parcel)


def plan_handoff(request: bytes, max_tokens: int) -> HandoffPlan:
    """The plan for a pair that fits. `max_tokens`: that the answer may have; 0: not known."""
    is_whole = max_tokens == 1
    prefill = request if is_whole else for_prefill(request)
    return HandoffPlan(Shape.RELAY, prefill, request, is_whole)


def why_not_paired(prefill: str, decode: str) -> str | None:
    """Why workers of these dialects hand nothing over to each other; None: they do."""
    if prefill != decode:
        return f"prefill workers speak {prefill}, decode workers {decode}"
    if prefill not in RELAYING:
        return f"workers that speak {prefill} hand nothing over through this router yet"
    return None


def is_divisible(request: bytes) -> bool:
    """Whether two workers can share a request: it asks for one answer, and for no logprobs of its
    prompt, which a worker that is handed the prompt does not have."""
    try:
        rest, *_ = split_tokens(request)
        message = pb.GenerateRequest.FromString(rest)
    except (DecodeError, ValueError):
        return False
    sampling = message.sampling_config
    return (
        sampling.num_return_sequences <= 1
        and sampling.beam_width <= 1
        and not message.output_config.prompt_logprobs
        and not message.output_config.return_context_logits
        and not message.HasField("disaggregated_params")
        and not message.HasField("prompt_tuning_config")
    )
