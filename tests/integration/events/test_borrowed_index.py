"""A router that starts beside one that runs, as processes: it begins with the other's index."""

import signal
from pathlib import Path

from support.fleet import PROMPT, Fleet
from support.polling import until
from support.processes import http_text


async def metric(fleet: Fleet, name: str) -> float:
    lines = (await http_text(fleet.http, "/metrics")).splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"dynamo_router_{name} ")]
    return float(value)


async def test_a_late_router_knows_at_once_what_the_first_one_knows(tmp_path: Path) -> None:
    async with Fleet(tmp_path, "--router-replica-sync") as fleet:
        await fleet.ask(PROMPT)

        async def indexed() -> bool:
            held = await fleet.overlaps(PROMPT)
            return list(held.values()) == [6] and await fleet.all_exact()

        await until(indexed)
        first = fleet.router
        await fleet.start_router("--router-replica-sync")
        assert list((await fleet.overlaps(PROMPT)).values()) == [6]
        assert await metric(fleet, "index_borrowed_sources") == 2
        await until(indexed)
        assert await metric(fleet, "event_plane_announcements_asked_total") == 0
        # What it has from the other is no more than what the engines hold.
        await first.stop(signal.SIGKILL)
        for number in range(2):
            await fleet.engines[number].stop(signal.SIGKILL)
            fleet.engines[number] = await fleet.start_engine(number)

        async def forgotten() -> bool:
            return not await fleet.overlaps(PROMPT) and await fleet.all_exact()

        await until(forgotten)
        assert "Traceback" not in fleet.router.text


async def test_a_router_of_another_block_size_gets_nothing(tmp_path: Path) -> None:
    async with Fleet(tmp_path, "--router-replica-sync") as fleet:
        await fleet.ask(PROMPT)
        await until(fleet.all_exact)
        await fleet.start_router("--router-replica-sync", "--block-size", "32")
        assert await metric(fleet, "index_borrowed_sources") == 0
