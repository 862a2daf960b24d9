"""Two engines that hand prompts over, apart from how they are called: what each has in hand.

A prefill engine holds the blocks of a prompt until its reader has them, or its lease is over by the
fabric's own clock. Where they meet in a room, each waits for the other. What a decode engine says
follows from what was handed to it: it can say nothing of a prompt that never came.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

BLOCK = 16
LEASE_S = 30.0
EOS = 7
CACHED = 16


class Leg(NamedTuple):
    """A request as an engine reads it."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    phase: str = ""
    """prefill, decode, or "" for the whole of it"""
    key: str = ""
    """under which the two engines find each other"""


class EngineFault(Exception):
    """The engine refuses, with a status of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Died(Exception):
    """The engine's process is gone."""


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """The greedy answer of the model to a prompt."""
    seed = sum(each * place for place, each in enumerate(prompt, 1))
    return [11 + (seed + place * place) % 900 for place in range(count)]


class Fabric:
    """Between all engines of one test."""

    def __init__(self, shape: str, lease_s: float = LEASE_S) -> None:
        """`lease_s`: for how long a prefill engine keeps a prompt that nobody reads."""
        self.shape, self.lease_s = shape, lease_s
        self.now = 0.0
        self.held: dict[str, tuple[int, float]] = {}
        """by key: blocks that a prefill engine holds, and until when"""
        self.waiting: dict[str, int] = {}
        """by key: blocks that a decode engine keeps for what is to come"""
        self.meetings: dict[str, asyncio.Future[tuple[int, ...]]] = {}
        self.registered: dict[str, asyncio.Event] = {}
        self.keys: list[str] = []
        self.recomputed = 0
        self._prompts: dict[str, tuple[int, ...]] = {}

    @property
    def blocks(self) -> int:
        """Held anywhere now: leases that are over hold none."""
        for key in [key for key, (_, until) in self.held.items() if until <= self.now]:
            del self.held[key]
        return sum(count for count, _ in self.held.values()) + sum(self.waiting.values())

    def hold(self, leg: Leg, key: str) -> None:
        assert key not in self.keys, f"{key} was used before"
        self.keys.append(key)
        self.held[key] = len(leg.prompt) // BLOCK, self.now + self.lease_s
        self._prompts[key] = leg.prompt

    def read(self, key: str) -> tuple[int, ...] | None:
        """What a reader pulls; None if it is not there any more."""
        return self._prompts[key] if self.blocks >= 0 and self.held.pop(key, None) else None

    def meeting(self, key: str) -> "asyncio.Future[tuple[int, ...]]":
        if key not in self.meetings:
            self.meetings[key] = asyncio.get_running_loop().create_future()
            self.registered[key] = asyncio.Event()
        return self.meetings[key]


class FakeLegs:
    """One engine. `faults` are those of its next requests, one each; "" is none."""

    def __init__(self, fabric: Fabric, *, sends_whole: bool = False) -> None:
        self.fabric, self.sends_whole = fabric, sends_whole
        self.faults: list[str] = []
        self.asked: list[Leg] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.go = asyncio.Event()

    async def run(self, leg: Leg) -> AsyncIterator[tuple[list[int], str, str]]:
        """(tokens, reason, key of what is handed over) of each part."""
        self.asked.append(leg)
        fault = self.faults.pop(0) if self.faults else ""
        parts = self._prefill(leg, fault) if leg.phase == "prefill" else self._decode(leg, fault)
        try:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    yield part
            self.ended.append(leg.request_id)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.append(leg.request_id)
            raise
        finally:
            self.fabric.waiting.pop(leg.request_id, None)

    async def _begin(self, fault: str) -> None:
        if fault == "hang":
            await asyncio.Event().wait()
        if fault in ("slow", "unavailable later"):
            await self.go.wait()
        if fault == "refuse":
            raise EngineFault(400, "none of a partner of this engine")
        if fault.startswith("unavailable"):
            raise EngineFault(503, "no memory")
        if fault == "die":
            raise Died

    async def _prefill(self, leg: Leg, fault: str) -> AsyncIterator[tuple[list[int], str, str]]:
        fabric, key = self.fabric, leg.key or f"{leg.request_id}-kv"
        tokens = greedy(leg.prompt, 1)
        if fabric.shape == "relay":
            await self._begin(fault)
            if fault == "empty":
                return
            if fault == "terminal":
                yield [EOS], "stop", ""
            elif fault == "no_parcel":
                yield tokens, "length", ""
            else:
                fabric.hold(leg, key)
                yield tokens, "length", key
            return
        meeting = fabric.meeting(key)
        assert key not in fabric.keys, f"{key} was used before"
        fabric.keys.append(key)
        fabric.held[key] = len(leg.prompt) // BLOCK, float("inf")
        try:
            await self._begin(fault)
            if fault == "empty":
                return
            await fabric.registered[key].wait()
            if fault == "late":  # the decode engine goes on before this answer is out
                meeting.set_result(leg.prompt)
                await self.go.wait()
            if not meeting.done():
                meeting.set_result(leg.prompt)
        finally:
            fabric.held.pop(key, None)
        yield tokens, "length", ""

    async def _decode(self, leg: Leg, fault: str) -> AsyncIterator[tuple[list[int], str, str]]:
        fabric, prompt = self.fabric, leg.prompt
        fabric.waiting[leg.request_id] = len(leg.prompt) // BLOCK
        if leg.phase == "decode" and fabric.shape != "relay":
            meeting = fabric.meeting(leg.key)
            fabric.registered[leg.key].set()
        await self._begin(fault)
        if fault == "empty":
            yield [], "abort", ""
            return
        if leg.phase == "decode":
            read = fabric.read(leg.key) if fabric.shape == "relay" else await meeting
            if read is None:
                fabric.recomputed += 1
            else:
                prompt = read
        tokens = greedy(prompt, leg.max_tokens)
        if fault == "other_token":
            tokens[0] += 1
        for place, token in enumerate(tokens):
            if fault == "die_midway" and place == 1:
                raise Died
            yield [token], "length" if place + 1 == len(tokens) else "", ""
