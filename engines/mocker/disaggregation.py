"""What mock engines hand over in disaggregated serving, and which requests are for which of them.

A decode worker keeps blocks free for a prompt that it is handed, has it after the time that a
transfer takes, and computes none of it. It takes a handoff only from a prefill worker that it could
have the cache of. With `--transfer` the handoff offers the prompt's blocks, which the decode worker
reads: see handovers.py. Without it no bytes are moved, and what a prefill worker has computed is
cached there and not held.
"""

from dataclasses import replace
from typing import NamedTuple

import msgspec

from ...base.errors import UNREADABLE, InvalidRequestError
from ...workers.dialects import CONTEXT_ONLY
from ..serving import EngineRequest, unsupported
from ..transfer import Offer


class Handoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a prefill worker says of the prompt that it computed."""

    prefill_worker_id: int
    model: str
    block_size: int
    prompt_tokens: int
    offer: Offer | None = None
    """of the prompt's blocks, where they are really moved"""
    metadata: bytes | None = None
    """of the engine that offers them, if it is in no store"""


class DisaggregationRole(NamedTuple):
    """Of one engine."""

    mode: str
    worker_id: int
    model: str
    block_size: int

    @property
    def hands_over(self) -> bool:
        """Whether it computes prompts for others, and nothing else."""
        return self.mode == "prefill"

    def handoff(
        self, prompt_tokens: int, offer: Offer | None = None, metadata: bytes | None = None
    ) -> Handoff:
        """What it says of a prompt of that length."""
        size = self.block_size
        return Handoff(self.worker_id, self.model, size, prompt_tokens, offer, metadata)

    def take(self, request: EngineRequest) -> EngineRequest:
        """A request as this kind of worker runs it. InvalidRequestError if it is not for it."""
        phase = request.phase
        if self.mode == "agg" and phase:
            raise unsupported("disaggregated serving", "disaggregated_params")
        if self.hands_over and phase == 0 and request.max_tokens == 1:
            return request  # its prefill is all of it
        if phase is not None and self.hands_over != (phase == CONTEXT_ONLY):
            text = f"a request of phase {phase} at a worker for {self.mode}"
            raise InvalidRequestError(text, field="disaggregated_params")
        if self.hands_over:
            return replace(request, max_tokens=1, min_tokens=min(1, request.min_tokens))
        if request.handoff is not None:
            self.read_handoff(request.handoff, len(request.token_ids))
        return request

    def read_handoff(self, handoff: bytes, prompt_tokens: int) -> Handoff:
        """InvalidRequestError for what does not come from a partner of ours, for such a prompt."""
        try:
            found = msgspec.json.decode(handoff, type=Handoff)
        except msgspec.ValidationError as error:
            raise _no_handoff(str(error)) from None
        except UNREADABLE:
            raise _no_handoff("no JSON") from None
        ours = self.handoff(prompt_tokens)
        for name in ("model", "block_size", "prompt_tokens"):
            theirs, wanted = getattr(found, name), getattr(ours, name)
            if theirs != wanted:
                raise _no_handoff(f"its {name} is {theirs}, not {wanted}")
        return found


def _no_handoff(why: str) -> InvalidRequestError:
    text = f"the prompt's handoff is none of a partner of this engine: {why}"
    return InvalidRequestError(text, field="disaggregated_params")
