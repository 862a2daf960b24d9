"""A request to a mock engine, and the tokens it gets: a function of its prompt and seed."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...indexer.hashing import block_hashes


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineRequest:
    """One generation. Equal prompts and seeds give equal output."""

    request_id: str
    token_ids: npt.NDArray[np.uint32]
    max_tokens: int
    min_tokens: int = 0  # stop tokens before that many are not heeded
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    bad_token_ids: frozenset[int] = frozenset()
    keep_stop_token: bool = False  # the output ends with the stop token, if one ended it
    lora_name: str | None = None
    cache_namespace: str | None = None
    returning_tokens: int | None = None  # how many of its tokens a later request begins with


class OutputPlan(NamedTuple):
    """All that a request will generate, known in advance."""

    tokens: npt.NDArray[np.uint32]
    visible: int  # how many of them the client gets to see: all, or all but the stop token
    finish_reason: str  # "length" or "stop"
    matched_stop: int | None  # the stop token that ended it


def plan_output(request: EngineRequest, *, vocab_size: int, eos: int) -> OutputPlan:
    """The request's output: max_tokens long, or up to the first stop token that comes up.

    Ids are below `vocab_size`; neither `eos` nor a bad token is among them. At least one id
    must be left to choose from (the engine checks).
    """
    prompt_hash = int(block_hashes(request.token_ids, len(request.token_ids))[0])
    generator = np.random.Generator(np.random.Philox(key=prompt_hash | request.seed << 64))
    banned = np.array(sorted(t for t in request.bad_token_ids | {eos} if t < vocab_size))
    ranks = generator.integers(0, vocab_size - len(banned), request.max_tokens, dtype=np.uint32)
    # The id of rank r among the allowed ones: r, plus the banned ids that come before it.
    passed = np.searchsorted(banned - np.arange(len(banned)), ranks, side="right")
    tokens = ranks + passed.astype(np.uint32)
    if request.stop_token_ids:
        stops = np.isin(tokens, list(request.stop_token_ids))
        stops[: request.min_tokens] = False
        at = int(stops.argmax())
        if stops[at]:
            visible = at + 1 if request.keep_stop_token else at
            return OutputPlan(tokens[: at + 1], visible, "stop", int(tokens[at]))
    return OutputPlan(tokens, len(tokens), "length", None)
