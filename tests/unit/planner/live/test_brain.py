"""PlanningBrain: the real planner in a real process, and what becomes of one that fails."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamo_router.base.errors import RouterError
from dynamo_router.engines.mocker import EngineConfig
from dynamo_router.planner import Constraints, Objectives, Observation
from dynamo_router.planner.live import brain as module
from dynamo_router.planner.live.brain import PlanningBrain, Setup, engine_of
from dynamo_router.planner.live.plan_process import NICE, Window
from dynamo_router.planner.observation import ObservedRequest, ObservedWorker
from dynamo_router.planner.planning import PlanningConfig
from dynamo_router.workers.records import ModelCard

CARD = ModelCard("tiny", 32, context_length=4096, total_kv_blocks=256, max_num_seqs=2)


def observation(at: float, count: int = 60, **more: Any) -> Observation:
    """Requests that are late on the one engine there is."""
    requests = [
        ObservedRequest(at - 30 + 0.5 * number, 640, 50, ttft_ms=9000.0, itl_ms=20.0, worker_id=1)
        for number in range(count)
    ]
    worker = ObservedWorker(worker_id=1, role="aggregated", state="serving", age_s=99.0, served=99)
    fields: dict[str, Any] = {
        "workers": [worker], "requests": requests, "window_s": 60.0, "block_size": 64, **more,
    }  # fmt: skip
    return Observation(at=at, **fields)


@pytest.fixture
async def brain() -> AsyncIterator[PlanningBrain]:
    planning = PlanningConfig(start_up_s=5.0, plan_every_s=10.0, window_s=60.0)
    setup = Setup(planning, Objectives(), Constraints(), EngineConfig(), 1.0)
    made = PlanningBrain(setup, lambda: CARD)
    yield made
    await made.close()
    await made.close()


def pid_of(brain: PlanningBrain) -> int:
    assert brain._process is not None
    return brain._process.pid


async def test_late_answers_call_for_engines_by_a_process_of_low_priority(
    brain: PlanningBrain,
) -> None:
    decision = await brain.observe(observation(100.0))
    assert decision.before.aggregated == 1
    assert decision.after.aggregated > 1
    assert decision.reasons
    pid = pid_of(brain)
    assert os.getpriority(os.PRIO_PROCESS, pid) == NICE
    await brain.observe(observation(105.0))
    assert pid_of(brain) == pid  # it remembers


async def test_a_process_that_ended_is_an_error_once(brain: PlanningBrain) -> None:
    await brain.observe(observation(100.0))
    os.kill(pid_of(brain), 9)
    with pytest.raises(RouterError, match="the planning process: ended with code -9|Connection"):
        await brain.observe(observation(105.0))
    assert (await brain.observe(observation(110.0))).before.aggregated == 1


async def test_a_plan_that_takes_too_long_is_ended(
    brain: PlanningBrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brain.observe(observation(100.0))
    pid = pid_of(brain)
    os.kill(pid, 19)  # SIGSTOP
    monkeypatch.setattr(module, "WALL_PER_CPU", 0.2)
    monkeypatch.setattr(module, "OVERHEAD_S", 0.0)
    with pytest.raises(RouterError, match="the plan took longer than 0.1 s"):
        await brain.observe(observation(105.0))
    assert not Path(f"/proc/{pid}").exists()


async def test_an_observation_that_makes_no_sense_is_refused_with_its_reason(
    brain: PlanningBrain,
) -> None:
    seen = observation(100.0)
    assert seen.requests
    object.__setattr__(seen.requests[0], "prompt_tokens", 0)
    with pytest.raises(RouterError, match=r"no plan: .* a request that makes no sense"):
        await brain.observe(seen)


def test_a_card_goes_before_what_is_configured() -> None:
    configured = EngineConfig(block_size=64, max_num_batched_tokens=4096)
    known = engine_of(CARD, configured)
    assert (known.block_size, known.num_gpu_blocks, known.max_num_seqs) == (32, 256, 2)
    assert (known.max_model_len, known.max_num_batched_tokens) == (4096, 4096)
    assert engine_of(None, configured) == configured


def test_the_window_is_whole_though_each_line_has_what_is_new() -> None:
    window = Window()
    first = window.whole(observation(100.0, 3))
    again = window.whole(observation(100.0, 0))
    assert again.requests == first.requests
    assert window.whole(observation(131.0, 0)).requests == list(first.requests or ())[2:]
    assert window.whole(observation(500.0, 0, requests=None)).requests is None


def test_what_goes_to_the_process_comes_out_of_it() -> None:
    setup = Setup(PlanningConfig(), Objectives(), Constraints(engines_max=3), EngineConfig(), 2.0)
    assert msgspec.json.decode(msgspec.json.encode(setup), type=Setup) == setup
    seen = observation(5.0)
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Observation) == seen
