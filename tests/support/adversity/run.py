"""An adversity run: a schedule's steps, one after the other, with the invariants between them."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

from support.adversity.clients import Clients
from support.adversity.faults import suffering
from support.adversity.invariants import Invariants
from support.adversity.ledger import Ledger
from support.adversity.schedule import KINDS, Step, to_text
from support.adversity.world import World

CLIENTS_END_S = 120.0
"""Deadline for a step's clients; the slowest limit of the router is a few seconds."""
WARM_UP = Step(0, (), dict.fromkeys(KINDS, 2) | {"stream": 12})


class ScheduleFailure(AssertionError):
    """An invariant was broken: by which step, and how to see it again."""

    def __init__(self, done: list[Step], step: Step, told: str, output: str) -> None:
        super().__init__(
            f"in step {len(done)}: {step.to_line()}\n{told}\n\n"
            "to replay, put these lines into a file and name it by ADVERSITY_STEPS:\n"
            f"{to_text([*done, step])}\n\nthe router's last words:\n{output[-3000:]}"
        )


async def run(folder: Path, steps: Iterable[Step], *serve: str) -> dict[str, float]:
    """Suffer the steps; ScheduleFailure at the first broken invariant.

    Returns the longest time in seconds that each invariant took to hold after a step.
    """
    async with World(folder, *serve) as world:
        ledger = Ledger()
        # What a router keeps once it has served anything is no leak.
        warm = await _suffer(world, ledger, WARM_UP)
        invariants = Invariants(world, ledger)
        await invariants.check(warm)
        invariants = Invariants(world, ledger)
        done: list[Step] = []
        for step in steps:
            try:
                prompts = await _suffer(world, ledger, step)
                await invariants.check(prompts)
            except (AssertionError, TimeoutError) as error:
                raise ScheduleFailure(done, step, f"{error!r:.6000}", world.router.text) from error
            done.append(step)
        invariants.check_memory()
        return invariants.slowest_s


async def _suffer(world: World, ledger: Ledger, step: Step) -> list[list[int]]:
    """One step, to the end of its faults; the prompts that were asked."""
    clients = Clients(world, ledger, step)
    random = Random(step.seed)
    kinds = [kind for kind, count in step.clients.items() for _ in range(count)]
    random.shuffle(kinds)
    some = random.uniform(0.1, 3.0) * len(kinds)
    tasks: dict[asyncio.Task[None], str] = {}

    def come(arriving: list[str]) -> None:
        for kind in arriving:
            tasks[asyncio.create_task(clients.run(kind), name=kind)] = kind

    def are_done() -> bool:
        """Those that do not wait for all others."""
        return all(task.done() for task, kind in tasks.items() if kind != "blocked")

    async with asyncio.timeout(CLIENTS_END_S), AsyncExitStack() as stack:
        try:
            come(kinds[::2])
            while clients.messages < some and not are_done():
                await asyncio.sleep(0.002)
            for fault in step.faults:
                await stack.enter_async_context(suffering(world, fault))
            come(kinds[1::2])
            while not are_done():
                await asyncio.sleep(0.01)
            clients.others_are_done.set()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return clients.prompts
