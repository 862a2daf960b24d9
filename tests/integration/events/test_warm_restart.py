"""A router that is killed among engines that go on, and one of those restarted, as processes."""

import asyncio
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.fleet import BLOCK, PROMPT, Fleet
from support.polling import until

ENGINES = 2


class Warm:
    """A fleet whose router keeps its index in a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "index"
        self.options = "--index-snapshot", str(self.path), "--index-snapshot-interval-s", "0.05"
        self.fleet = Fleet(folder, *self.options)

    async def serve(self) -> None:
        """A router with the file, in place of the one that runs."""
        await self.fleet.router.stop(signal.SIGKILL)
        await self.fleet.start_router(*self.options)

    async def is_indexed(self) -> bool:
        return sorted((await self.fleet.overlaps(PROMPT)).values()) == [6]

    async def is_saved(self) -> None:
        """Wait for a file that was begun after now: the second, for one may be under way."""
        for _ in range(2):
            before = self.path.stat().st_mtime_ns if self.path.exists() else 0

            async def newer(before: int = before) -> bool:
                return self.path.exists() and self.path.stat().st_mtime_ns > before

            await until(newer)


@pytest.fixture
async def warm(tmp_path: Path) -> AsyncIterator[Warm]:
    made = Warm(tmp_path)
    async with made.fleet as fleet:
        await fleet.ask(PROMPT)
        await until(made.is_indexed)
        await until(fleet.all_exact)
        await made.is_saved()
        yield made


async def metrics(fleet: Fleet) -> dict[str, float]:
    def ask() -> str:
        with urllib.request.urlopen(f"http://{fleet.http}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    lines = [line for line in (await asyncio.to_thread(ask)).splitlines() if line[:1] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_a_killed_router_knows_at_once_what_it_knew(warm: Warm) -> None:
    await warm.serve()
    # No waiting: it was there before the first request could be.
    assert await warm.is_indexed()
    assert (await metrics(warm.fleet))["dynamo_router_index_restored_sources"] == ENGINES
    tokens, cached = await warm.fleet.ask(PROMPT + [9] * BLOCK)
    assert len(tokens) == 3 and cached == 6 * BLOCK
    await until(warm.fleet.all_exact)
    # The engines confirmed what the file said, asked for it or by a heartbeat that came first;
    # nobody had to announce a whole cache.
    known = await metrics(warm.fleet)
    assert known["dynamo_router_event_plane_announcements_asked_total"] == 0
    assert "Traceback" not in warm.fleet.router.text


async def test_a_cold_one_has_to_ask_first(warm: Warm) -> None:
    await warm.fleet.router.stop(signal.SIGKILL)
    await warm.fleet.start_router()
    await until(warm.is_indexed)
    known = await metrics(warm.fleet)
    # For the whole cache, or for what a heartbeat heard first showed to be missing.
    asked = [
        known[f"dynamo_router_event_plane_{what}_asked_total"]
        for what in ("announcements", "replays")
    ]
    assert sum(asked) >= 1


async def test_the_ghosts_of_an_engine_that_restarted_meanwhile_go(warm: Warm) -> None:
    await warm.fleet.router.stop(signal.SIGKILL)
    for number in range(ENGINES):
        await warm.fleet.engines[number].stop(signal.SIGKILL)
        warm.fleet.engines[number] = await warm.fleet.start_engine(number)
    await warm.serve()

    async def forgotten() -> bool:
        return not await warm.fleet.overlaps(PROMPT) and await warm.fleet.all_exact()

    await until(forgotten)


async def test_what_changed_while_nobody_listened_is_replayed(warm: Warm) -> None:
    """A stale file: the router was away while an engine cached more."""
    stale = warm.path.read_bytes()
    more = [3] * (5 * BLOCK)
    await warm.fleet.ask(more)
    await warm.fleet.router.stop(signal.SIGKILL)
    warm.path.write_bytes(stale)
    await warm.serve()

    async def both() -> bool:
        known = [max((await warm.fleet.overlaps(p)).values(), default=0) for p in (PROMPT, more)]
        return known == [6, 5] and await warm.fleet.all_exact()

    await until(both)
    assert (await metrics(warm.fleet))["dynamo_router_event_plane_announcements_asked_total"] == 0


async def test_a_broken_file_is_a_cold_start_and_a_line(warm: Warm) -> None:
    await warm.fleet.router.stop(signal.SIGKILL)
    warm.path.write_bytes(warm.path.read_bytes()[:-3])
    await warm.serve()
    await warm.fleet.router.says("ends too early")
    known = await metrics(warm.fleet)
    assert known["dynamo_router_index_restored_sources"] == 0
    await until(warm.is_indexed)
    await warm.is_saved()


async def test_a_router_that_stops_writes_the_file(warm: Warm) -> None:
    await warm.fleet.router.stop(signal.SIGKILL)
    warm.path.unlink()
    await warm.fleet.start_router(
        "--index-snapshot", str(warm.path), "--index-snapshot-interval-s", "1000"
    )
    await until(warm.fleet.all_exact)
    assert not warm.path.exists()
    assert await warm.fleet.router.stop() == 0
    assert [p.name for p in warm.path.parent.glob("index*")] == ["index"]
    await warm.serve()
    assert await warm.is_indexed()
