"""A request to a mock engine, and the tokens it gets: a function of its prompt and seed.

Each token is a function of all tokens before it, as a model's is at temperature 0. So a prompt with
the first tokens of its output behind it gets the rest of that output, from any engine.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..serving import EngineRequest

USUAL_TOKENS = 128
"""Of an answer whose length no client bounds, in the mean."""
_U64 = np.uint64
_GOLDEN = 0x9E3779B97F4A7C15


class OutputPlan(NamedTuple):
    """All that a request will generate, known in advance."""

    tokens: npt.NDArray[np.uint32]
    visible: int  # how many of them the client gets to see: all, or all but the stop token
    finish_reason: str  # "length" or "stop"
    matched_stop: int | None  # the stop token that ended it


def plan_output(
    request: EngineRequest, *, vocab_size: int, ends: frozenset[int], context: int = 0
) -> OutputPlan:
    """The request's output: max_tokens long, or up to the first stop token that comes up.

    A request that may fill the whole `context` (0: unknown) said nothing of its answer's length:
    it ends as a model's would, after USUAL_TOKENS in the mean, unless it has `ignore_eos`. Which
    tokens end it depends on them alone, so that an answer that goes on elsewhere ends where it
    would have. Ids are below `vocab_size`; neither `ends` nor bad tokens are among them. At least
    one id must be left to choose from (the engine checks).
    """
    banned = np.array(banned_tokens(request, vocab_size=vocab_size, ends=ends), np.int64)
    ranks = _ranks(request, banned, vocab_size - len(banned))
    # The id of rank r among the allowed ones: r, plus the banned ids that come before it.
    passed = np.searchsorted(banned - np.arange(len(banned)), ranks, side="right")
    tokens = (ranks + passed).astype(np.uint32)
    if request.stop_token_ids:
        stops = np.isin(tokens, list(request.stop_token_ids))
        stops[: request.min_tokens] = False
        at = int(stops.argmax())
        if stops[at]:
            visible = at + 1 if request.keep_stop_token else at
            return OutputPlan(tokens[: at + 1], visible, "stop", int(tokens[at]))
    if len(request.token_ids) + request.max_tokens == context and not request.ignore_eos:
        last = tokens % USUAL_TOKENS == 0
        last[: max(0, request.min_tokens - 1)] = False
        if last.any():
            tokens = tokens[: int(last.argmax()) + 1]
            return OutputPlan(tokens, len(tokens), "stop", None)
    return OutputPlan(tokens, len(tokens), "length", None)


def banned_tokens(request: EngineRequest, *, vocab_size: int, ends: frozenset[int]) -> list[int]:
    """The ids below `vocab_size` that a request does not get, sorted."""
    return sorted(token for token in request.bad_token_ids | ends if token < vocab_size)


def logprob_of(request: EngineRequest, *, vocab_size: int, ends: frozenset[int]) -> float:
    """Of each token: it is drawn evenly from those that are allowed."""
    banned = banned_tokens(request, vocab_size=vocab_size, ends=ends)
    return -math.log(max(1, vocab_size - len(banned)))


def _ranks(
    request: EngineRequest, banned: npt.NDArray[np.int64], allowed: int
) -> npt.NDArray[np.int64]:
    """The ranks, among the allowed ids, of the tokens that follow the prompt.

    The one at position i has rank a + r(i) modulo `allowed`, where r is a hash of position and
    seed, and a is -2 times the sum of all ranks before it. Behind it a becomes -a - 2 r(i): but for
    the sign, which alternates, a sum of hashes, so that all tokens are found at once.
    """
    prompt = request.token_ids
    passed = sum(int(np.count_nonzero(prompt > each)) for each in banned)
    before = -2 * (int(prompt.sum(dtype=np.int64)) - passed) % allowed
    hashes = _hashes(len(prompt), request.max_tokens, request.seed or 0) % _U64(allowed)
    drawn = hashes.astype(np.int64)
    signs = 1 - 2 * (np.arange(request.max_tokens) & 1)
    steps = 2 * signs * drawn
    sums = before + np.cumsum(steps) - steps
    ranks: npt.NDArray[np.int64] = (signs * sums + drawn) % allowed
    return ranks


def _hashes(first: int, count: int, seed: int) -> npt.NDArray[np.uint64]:
    """A number for each position from `first` on (the mixer of splitmix64)."""
    start = (first + seed * 0xD1342543DE82EF95) * _GOLDEN % 2**64
    found = np.arange(count, dtype=_U64) * _U64(_GOLDEN) + _U64(start)
    found ^= found >> _U64(30)
    found *= _U64(0xBF58476D1CE4E5B9)
    found ^= found >> _U64(27)
    found *= _U64(0x94D049BB133111EB)
    found ^= found >> _U64(31)
    return found
