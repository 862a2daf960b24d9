"""The probe of the event loop: how late it is called."""

import asyncio
import time

from support.polling import until

from dynamo_router.base.clock import ManualClock, SystemClock
from dynamo_router.server.metrics.loop_lag import PROBE_EVERY_S, LoopLagProbe


def seen(probe: LoopLagProbe) -> tuple[float, float]:
    """(observations, their sum)."""
    (family,) = probe.collect()
    values = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples}
    return values["count"], values["sum"]


async def test_a_loop_that_stands_still_is_noticed() -> None:
    probe = LoopLagProbe(SystemClock())
    probe.start()
    try:
        await until(lambda: seen(probe)[0] >= 1)
        before = seen(probe)
        end = time.monotonic() + 10 * PROBE_EVERY_S
        while time.monotonic() < end:  # somebody holds the loop
            pass
        await until(lambda: seen(probe)[0] > before[0])
        assert seen(probe)[1] - before[1] > 8 * PROBE_EVERY_S
    finally:
        probe.close()


async def test_how_late_is_told_by_its_clock() -> None:
    clock = ManualClock()
    probe = LoopLagProbe(clock)
    probe.start()
    clock.advance(PROBE_EVERY_S + 2.0)
    await until(lambda: seen(probe)[0] == 1)
    count, total = seen(probe)
    assert round(total, 6) == 2.0
    clock.advance(PROBE_EVERY_S / 2)  # a timer that comes early is not late
    await until(lambda: seen(probe)[0] == 2)
    assert round(seen(probe)[1], 6) == 2.0
    probe.close()


async def test_a_closed_probe_leaves_no_timer() -> None:
    probe = LoopLagProbe(SystemClock())
    probe.start()
    probe.close()
    probe.close()
    before = seen(probe)
    await asyncio.sleep(0)
    assert probe._timer is None and seen(probe) == before
