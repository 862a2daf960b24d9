"""Logprobs as libraries tell them, one map or number for each token, as those of an answer."""

from collections.abc import Sequence
from typing import Any

from ..dialects import TokenLogprob


def token_logprobs(tokens: Sequence[int], told: Sequence[Any], most: int) -> list[TokenLogprob]:
    """Of each token. `told` has for each a map from token ids to what has a `logprob`, the token's
    own among them, or the token's own number; `most`: how many of the likeliest to pass on."""
    return [_one(token, each, most) for token, each in zip(tokens, told, strict=False)]


def _one(token: int, told: Any, most: int) -> TokenLogprob:
    if not isinstance(told, dict):
        return TokenLogprob(token, float(told))
    by_token = {int(each): float(entry.logprob) for each, entry in told.items()}
    top = sorted(by_token.items(), key=lambda pair: -pair[1])[:most]
    return TokenLogprob(token, by_token[token], top)
