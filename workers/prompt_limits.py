"""Which engines of a fleet can take a prompt, by what each says of itself. Pure."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Set
from typing import NamedTuple

from .engine_facts import EngineFacts

_NO_WORKER: frozenset[int] = frozenset()


class Fit(NamedTuple):
    """The workers that cannot take a prompt; if these are all, `refusal` has the reason."""

    unfit: Set[int]
    refusal: str | None


_ANYWHERE = Fit(_NO_WORKER, None)


class PromptLimits:
    """The limits of the engines known, by worker id. A prompt that suits all of them, as almost
    every one does, costs three comparisons.
    """

    def __init__(self, engines: Mapping[int, EngineFacts]) -> None:
        self._engines = dict(engines)
        limits = [facts.longest_prompt for facts in engines.values()]
        vocabularies = [facts.vocab_size for facts in engines.values()]
        self._shortest = min((limit for limit in limits if limit), default=0)
        contexts = {facts.max_seq_len for facts in engines.values() if facts.max_seq_len}
        self._contexts = sorted(contexts)
        differ = len({facts.max_seq_len for facts in engines.values()}) > 1
        self._narrowest = self._contexts[0] if differ and self._contexts else math.inf
        self._smallest = min((size for size in vocabularies if size), default=0)

    def context_for(self, length: int) -> int:
        """The shortest context that a prompt of this length leaves something of: each engine that
        takes the prompt takes an answer of what is left. 0 where no engine says."""
        at = bisect_right(self._contexts, length)
        return self._contexts[min(at, len(self._contexts) - 1)] if self._contexts else 0

    def check(self, length: int, largest_token: int, output: int = 0) -> Fit:
        """Who cannot take a prompt of this length with this largest token id and an answer of
        `output` tokens. Where no context holds both, those that take the prompt may have it: they
        cut the answer or refuse it by a name of their own."""
        if (
            (not self._shortest or length <= self._shortest)
            and (not self._smallest or largest_token < self._smallest)
            and length + output <= self._narrowest
        ):
            return _ANYWHERE
        unfit = {
            worker_id
            for worker_id, facts in self._engines.items()
            if facts.check_prompt(length, largest_token) is not None
        }
        if len(unfit) < len(self._engines):
            narrow = {
                worker_id
                for worker_id, facts in self._engines.items()
                if not facts.holds(length, output)
            }
            everyone = len(unfit | narrow) == len(self._engines)
            return Fit(unfit if everyone else unfit | narrow, None)
        return Fit(unfit, self._refusal(length, largest_token))

    def _refusal(self, length: int, largest_token: int) -> str:
        engines = self._engines.values()
        for facts in (
            max(engines, key=lambda facts: facts.longest_prompt or math.inf),
            max(engines, key=lambda facts: facts.vocab_size or math.inf),
        ):
            reason = facts.check_prompt(length, 0) or facts.check_prompt(0, largest_token)
            if reason is not None:
                return reason
        return "no engine takes a prompt of this length with these token ids"
