"""Which streams may go on at another worker, after which failures. Pure tables.

Both are asked once the client has a part of the answer; until then a request is simply tried again.
"""

import enum
from collections.abc import Sequence
from typing import Any

from ...workers.failures import Blame, Verdict


class RefusedMove(enum.Enum):
    """Why a stream that lost its worker ended there."""

    LIMIT = "limit"
    """it moved as often as it may"""
    FAILURE = "failure"
    """another worker would not help"""
    REQUEST = "request"
    """the rest of its answer cannot be asked for: see `why_fixed`"""
    BUDGET = "budget"
    """the retry budget had no room"""
    NO_WORKER = "no_worker"
    """no other worker could take it"""


_MOVES = {
    Blame.CLIENT: False,
    Blame.REQUEST: False,
    Blame.WORKER: True,
    Blame.EITHER: True,
    Blame.OVERLOAD: True,
    Blame.SLOW: True,
    Blame.TRANSPORT: True,
    Blame.US: False,
}
_PASSING = ("unavailable", "cancelled")
"""What an engine says that shuts down: no word on the request."""


def failure_moves(failures: Sequence[Verdict]) -> bool:
    """Whether a stream goes on elsewhere after the last of its failures.

    One that engines failed at twice, in words that could be about the request, does not: as with
    requests that have not begun, the second one says that it is the request.
    """
    if not _MOVES[failures[-1].blame]:
        return False
    return sum(map(_is_doubted, failures)) < 2 or not _is_doubted(failures[-1])


def why_fixed(request: Any, *, stops_held: bool) -> str | None:
    """What of a GenerateRequest cannot go on at another engine; None: it can.

    `stops_held`: the reader of the answer looks for its stop strings. An engine does not see one
    that began in the text of another engine.
    """
    sampling, output = request.sampling_config, request.output_config
    if request.guided_decoding.guide_type:
        return "guided_decoding"  # an engine's grammar begins with its own first token
    if request.stop and not stops_held:
        return "stop"
    if sampling.beam_width > 1 or sampling.num_return_sequences > 1:
        return "num_return_sequences"
    if output.HasField("prompt_logprobs"):
        return "prompt_logprobs"  # would be those of a longer prompt
    for name in ("return_context_logits", "return_generation_logits", "return_encoder_output"):
        if getattr(output, name):
            return name
    if request.multimodal_input.image_data or request.prompt_tuning_config.embedding_table:
        return "multimodal_input"  # the prompt's tokens are not all of it
    if request.disaggregated_params.request_type:
        return "disaggregated_params"
    return None


def _is_doubted(verdict: Verdict) -> bool:
    return verdict.blame is Blame.EITHER and verdict.cause not in _PASSING
