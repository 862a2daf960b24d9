"""Answers of one request whose prompts begin alike: the first of them computes what they share.

The others wait for its first token, and then get the worker that has the blocks: an engine's KV
events may come later than its token.
"""

import asyncio
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from ..router.placement import Computed
from ..router.policy import Decision
from ..router.prompt import Prompt

LEAST_SHARE = 0.5
"""Of a prompt's blocks that must be shared to be worth waiting for."""
LEAST_TOKENS = 256
"""Shared tokens, likewise: fewer are computed again within about one step of an engine."""


class Leader:
    """The first answer of those whose prompts begin alike."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._begun = asyncio.Event()
        self._decision: Decision | None = None
        self.followers = 0

    def note(self, count: int, leaders: dict[int, "Leader"]) -> None:
        """Enter it by its first `count` blocks, unless another one has them or it has fewer.

        A block's hash is that of all before it, too: that of the last one shows all of them.
        """
        own = self._prompt.sequence_hashes
        if len(own) >= count:
            leaders.setdefault(int(own[count - 1]), self)

    def share_with(self, prompt: Prompt) -> int:
        """Leading blocks that are the same in both."""
        own, other = self._prompt.sequence_hashes, prompt.sequence_hashes
        count = min(len(own), len(other))
        if prompt is self._prompt:
            return count
        differ = own[:count] != other[:count]
        return int(np.argmax(differ)) if differ.any() else count

    def begin(self, decision: Decision | None) -> None:
        """Its first token came, or it ended without one. Idempotent."""
        if not self._begun.is_set():
            self._decision = decision
            self._begun.set()

    async def decision(self) -> Decision | None:
        """Where its prompt was computed; None: no worker is known. Waits for `begin`."""
        await self._begun.wait()
        return self._decision


class Part(NamedTuple):
    """Of one answer: what it leads, or whom it waits for, and the number of blocks they share."""

    leads: Leader | None = None
    follows: Leader | None = None
    blocks: int = 0

    async def computed(self) -> Computed | None:
        """What a worker has of the prompt once the one that this follows has begun."""
        assert self.follows is not None
        decision = await self.follows.decision()
        return None if decision is None else Computed(decision.worker, self.blocks)


ALONE = Part()


def parts_of(prompts: Sequence[Prompt]) -> list[Part]:
    """For each prompt of a request, in their order. Computes what hashes are not yet computed."""
    leaders: list[Leader] = []
    # By the least number of blocks to share, the first leader with these blocks, by their hash.
    first: dict[int, dict[int, Leader]] = {}
    parts: list[Part] = []
    for prompt in prompts:
        least = ceil(max(LEAST_TOKENS / prompt.block_size, LEAST_SHARE * prompt.blocks))
        if prompt.blocks < least:
            parts.append(ALONE)
            continue
        known = first.get(least)
        if known is None:
            known = first[least] = {}
            for each in leaders:
                each.note(least, known)
        leader = known.get(int(prompt.sequence_hashes[least - 1]))
        if leader is not None:
            leader.followers += 1
            parts.append(Part(follows=leader, blocks=leader.share_with(prompt)))
            continue
        leaders.append(Leader(prompt))
        for count, some in first.items():
            leaders[-1].note(count, some)
        parts.append(Part(leads=leaders[-1]))
    return [ALONE if part.leads and not part.leads.followers else part for part in parts]
