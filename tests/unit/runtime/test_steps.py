"""Long answers in steps, and the share of the event loop that they take."""

import asyncio

import pytest

from dynamo_router.runtime.steps import LoopShare, finish_in_turns, in_turns


class Loop:
    """Time that passes by work and by waiting only."""

    def __init__(self, share: float, saved_s: float) -> None:
        self.now = 100.0
        self.worked = 0.0
        self.share = LoopShare(share, saved_s, now=lambda: self.now)

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds
        self.share.spend(seconds)


def test_one_answer_goes_ahead_and_many_wait_for_their_share() -> None:
    loop = Loop(0.25, 0.02)
    loop.work(0.01)
    assert loop.share.owed_s() == 0
    loop.work(0.05)
    # 60 ms done, 20 saved and 15 earned meanwhile: 25 are owed, which take four times as long.
    owed = loop.share.owed_s()
    assert owed == pytest.approx(0.1)
    loop.now += owed
    assert loop.share.owed_s() == pytest.approx(0, abs=1e-9)
    loop.now += 1000
    loop.work(0.02)
    assert loop.share.owed_s() == 0
    loop.work(0.02)
    assert loop.share.owed_s() > 0


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("step_s", [0.0001, 0.03])
def test_however_often_they_ask_they_get_their_share(share: float, step_s: float) -> None:
    loop = Loop(share, 0.02)
    began = loop.now
    while loop.now - began < 100:
        loop.now += loop.share.owed_s()
        loop.work(step_s)
    assert loop.worked == pytest.approx(100 * share, rel=0.01)


async def test_the_answers_of_many_askers_leave_the_loop_to_others() -> None:
    share = LoopShare(0.5, 0.0, now=asyncio.get_running_loop().time)
    done = []

    async def ask(name: int) -> None:
        async for item in in_turns(range(3), share):
            share.spend(0.0001)
            done.append((item, name))

    await asyncio.gather(*(ask(name) for name in range(4)))
    assert done == [(item, name) for item in range(3) for name in range(4)]


async def test_a_result_and_an_error_come_through() -> None:
    def steps(fails: bool):  # type: ignore[no-untyped-def]
        yield
        if fails:
            raise KeyError("gone")
        return 7

    assert await finish_in_turns(steps(False), LoopShare()) == 7
    with pytest.raises(KeyError, match="gone"):
        await finish_in_turns(steps(True), LoopShare())
