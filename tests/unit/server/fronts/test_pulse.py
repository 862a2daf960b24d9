"""A process that hangs is told from one that runs, is slow, or slept with the machine."""

import asyncio
from pathlib import Path

from support.polling import until

from dynamo_router.server.fronts.pulse import HangWatch, Pulse, Pulses


async def test_each_process_has_a_count_of_its_own_that_its_loop_drives(tmp_path: Path) -> None:
    pulses = Pulses(tmp_path, 3)
    assert [pulses.of(place) for place in range(3)] == [0, 0, 0]
    last = Pulse(tmp_path, 2)
    await until(lambda: pulses.of(2) == 1)
    first = Pulse(tmp_path, 0)
    await until(lambda: pulses.of(0) == 1)
    await until(lambda: pulses.of(2) > 1)
    assert pulses.of(1) == 0
    await first.close()
    await last.close()
    stood = pulses.of(2)
    await asyncio.sleep(0)
    assert pulses.of(2) == stood
    pulses.close()


def test_only_looks_in_a_row_without_a_change_are_a_hang() -> None:
    watch = HangWatch(3)
    assert not any(watch.look(count) for count in (0, 0, 0, 1, 1, 1, 2, 2, 2))
    assert watch.look(2) and watch.look(2)
    assert not watch.look(3)


def test_one_that_was_not_watched_begins_anew() -> None:
    watch = HangWatch(2)
    watch.look(5), watch.look(5)
    watch.reset()
    assert not watch.look(5) and not watch.look(5)
    assert watch.look(5)
