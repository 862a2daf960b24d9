"""What must hold after every step, once clients are gone and faults are over."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from support.adversity.engine_cache import leading_blocks
from support.adversity.ledger import Ledger, statuses_of
from support.adversity.world import BLOCK, World

DEADLINE_S = 40.0
"""For a machine with much else to do; a router on one of its own takes a few seconds."""
POLL_S = 0.05
SPARE = {"descriptors": 6, "threads": 4, "children": 0}
"""How much more of each may be in use than before the first fault."""
SPARE_BYTES = 64 << 20
EACH_PROMPT = 12
"""How many of a step's prompts the index is asked about."""

Check = Callable[[], Awaitable[str]]
"""A word on what is wrong; empty when nothing is."""


class Invariants:
    """Checks a world against a ledger. `baseline` is what its router used before anything."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world, self._ledger = world, ledger
        self.baseline = world.usage()
        self.baseline_bytes = world.resident_bytes()
        self.slowest_s: dict[str, float] = {}
        """the longest time that each took to hold"""

    async def check(self, prompts: list[list[int]]) -> None:
        """Wait until all of it holds; AssertionError with what does not."""
        asked = prompts[:: max(1, len(prompts) // EACH_PROMPT)]
        await self._eventually("ready", self._ready)
        await self._eventually("released", self._released)
        await self._eventually("counted", self._counted)
        await self._eventually("index", lambda: self._index_is_true(asked))
        await self._eventually("usage", self._usage)
        assert not self._ledger.wrong(), "\n".join(self._ledger.wrong())
        output = self._world.router.text
        assert "Traceback" not in output, output[output.index("Traceback") :][:4000]

    def check_memory(self) -> None:
        grown = self._world.resident_bytes() - self.baseline_bytes
        assert grown <= SPARE_BYTES, f"the router grew by {grown >> 20} MiB"

    async def _eventually(self, name: str, check: Check) -> None:
        began = time.monotonic()
        while wrong := await check():
            assert time.monotonic() - began < DEADLINE_S, f"{name}: {wrong}"
            await asyncio.sleep(POLL_S)
        took = time.monotonic() - began
        self.slowest_s[name] = max(took, self.slowest_s.get(name, 0.0))

    async def _ready(self) -> str:
        rows = await self._world.workers()
        states = {row["worker_id"]: (row["state"], row.get("reason", "")) for row in rows}
        return "" if await self._world.is_ready() else f"workers are {states}"

    async def _released(self) -> str:
        """Nothing is booked, waits or runs, neither here nor at the engines."""
        samples = await self._world.metrics()
        waiting = samples.get("dynamo_router_queue_pending_requests", 0.0)
        in_flight = samples["dynamo_component_router_requests_started_total"] - sum(
            statuses_of(samples).values()
        )
        if waiting or in_flight:
            return f"{waiting:g} requests wait, {in_flight:g} are in flight"
        loads = ("active_requests", "active_blocks", "active_prefill_tokens")
        for row in await self._world.workers():
            if any(row[load] for load in loads):
                return f"booked: {row}"
        for engine in await self._world.engines():
            if engine["running"] or engine["waiting"]:
                return f"an engine computes for nobody: {engine}"
        return ""

    async def _counted(self) -> str:
        counted = statuses_of(await self._world.metrics())
        if own := self._ledger.own_errors(counted):
            return f"errors of the router's own: {own}"
        return "; ".join(self._ledger.contradictions(counted)[:3])

    async def _index_is_true(self, prompts: list[list[int]]) -> str:
        world = self._world
        truth = dict(
            zip(
                world.worker_ids,
                await asyncio.gather(*map(world.cached, range(len(world.worker_ids)))),
                strict=True,
            )
        )
        for row in await world.workers():
            held = len(truth[row["worker_id"]])
            if row["indexed_blocks"] != held or row["event_source_state"] != "exact":
                said = f"{row['indexed_blocks']} blocks, {row['event_source_state']}"
                return f"worker {row['worker_id']} holds {held} blocks, the index has {said}"
        for prompt in prompts:
            found = await world.overlaps(prompt)
            for worker_id, held_blocks in truth.items():
                expected = leading_blocks(prompt, held_blocks, BLOCK)
                if found.get(worker_id, 0) != expected:
                    claim = found.get(worker_id, 0)
                    return f"worker {worker_id} holds {expected} blocks of a prompt, not {claim}"
        return ""

    async def _usage(self) -> str:
        now = self._world.usage()
        over = {
            what: (now[what], self.baseline[what])
            for what, spare in SPARE.items()
            if now[what] > self.baseline[what] + spare
        }
        return f"in use (now, before): {over}" if over else ""
