"""HandoffPlan: what each leg of a request is sent, and what may be done while they run. Pure."""

import enum
from typing import Any, NamedTuple

import msgspec

from ...base.errors import InvalidRequestError
from ..dialects import for_decode, for_prefill
from ..transfer_facts import TransferFacts
from .connectors import PARCELS, Connector, Meeting
from .queue_hint import RemotePrefillHint


class Shape(enum.Enum):
    """The order of the legs."""

    RELAY = "relay"
    """prefill first; its answer has a parcel, which the decode worker gets as it is"""
    RENDEZVOUS = "rendezvous"
    """both at once; they meet under an id that the router has made"""
    PUSH = "push"
    """both at once; the decode worker knows the prefill worker by what that has published"""
    QUEUE = "queue"
    """the decode worker alone is asked, and puts the prompt into the prefill queue"""

    @property
    def is_together(self) -> bool:
        """Whether the decode worker is asked at once, and waits for the prefill worker."""
        return self in (Shape.RENDEZVOUS, Shape.PUSH)


class HandoffPlan(NamedTuple):
    """One attempt of one request. Requests are serialized GenerateRequests."""

    shape: Shape
    prefill: bytes
    """for the prefill worker"""
    request: bytes
    """for the decode worker: at once, or once there is a parcel"""
    is_whole: bool = False
    """the prefill's one token is the whole answer: there is no parcel and no second leg"""
    abort_safe: bool = True
    """a prefill may be aborted at any moment; if not, it goes on to its end without a reader"""
    ends_with_prefill: bool = True
    """a prefill that ends with its first token, for another reason than its length, hands nothing
    over: it is the whole answer"""
    must_read: bool = False
    """the prefill worker keeps a prompt until it was read, without an end"""

    def decode(self, parcel: bytes) -> bytes:
        """For the decode worker, with what the prefill worker handed over."""
        return for_decode(self.request, parcel)


def plan_handoff(
    request: bytes,
    max_tokens: int,
    connector: Connector = PARCELS,
    source: TransferFacts | None = None,
    meeting: Meeting | None = None,
) -> HandoffPlan:
    """The plan for a pair that fits. `max_tokens`: that the answer may have; 0: not known.
    `source`: of the prefill worker; `meeting`: the ids of this attempt."""
    if max_tokens == 1 and connector.runs_whole:
        return HandoffPlan(Shape.RELAY, request, request, True, connector.abort_safe)
    source, meeting = source or TransferFacts(), meeting or Meeting()
    there, here = connector.fields(source, meeting)
    first = for_prefill(request, _encoded(there), limited=connector.limits_prefill)
    shape = Shape(connector.shape)
    then = for_decode(request, _encoded(here)) if shape.is_together else request
    return HandoffPlan(
        shape,
        first,
        then,
        abort_safe=connector.abort_safe,
        ends_with_prefill=connector.ends_with_prefill,
        must_read=connector.must_read,
    )


def plan_queued(request: bytes, hint: RemotePrefillHint) -> bytes:
    """For the decode worker, which finds a prefill worker itself."""
    return for_decode(request, hint.encode())


def _encoded(fields: dict[str, object]) -> bytes:
    return msgspec.json.encode(fields) if fields else b""


def why_whole(message: Any) -> InvalidRequestError | None:
    """What of a GenerateRequest two workers cannot share, as the error for its client where no
    worker runs it alone; None: they can."""
    sampling = message.sampling_config
    found = {
        "num_return_sequences": sampling.num_return_sequences > 1,
        "beam_width": sampling.beam_width > 1,
        "prompt_logprobs": bool(message.output_config.prompt_logprobs),
        "return_context_logits": message.output_config.return_context_logits,
        "disaggregated_params": message.HasField("disaggregated_params"),
        "prompt_tuning_config": message.HasField("prompt_tuning_config"),
    }
    field = next((name for name, is_there in found.items() if is_there), None)
    if field is None:
        return None
    text = f"{field} needs a worker that runs whole requests, and this model has none"
    return InvalidRequestError(text, field=field)
