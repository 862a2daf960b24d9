"""A decode engine that is handed a prompt: it keeps blocks for it, and computes none of it."""

import asyncio
from typing import Any

import pytest
from support.mock_requests import apply, request
from support.polling import until

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.engine import MockEngine
from dynamo_router.engines.mocker.live import LiveEngine

BLOCK = 16
PROMPT = range(100, 100 + 64 * BLOCK)


def engine(**more: Any) -> MockEngine:
    config = {"block_size": BLOCK, "num_gpu_blocks": 128, **more}
    return MockEngine(EngineConfig(**config))


def test_its_first_token_takes_one_step_of_decoding() -> None:
    made = engine()
    made.submit(request("r1", PROMPT, 3, handoff=b"{}"))
    begun = made.step()
    assert begun.arriving == [("r1", len(PROMPT))]
    assert (begun.duration_s, begun.outputs, begun.events) == (0.0, [], [])
    assert made.active_blocks == 64, "allocated before the transfer"
    assert not made.has_work
    made.arrive("r1")
    first = made.step()
    assert first.prefill_tokens == 0 and first.outputs[0].generated == 1
    cache: set[int] = set()
    apply(cache, first.events)
    assert len(cache) == 64, "and what has come is cached"
    second = made.step()
    assert first.duration_s == pytest.approx(second.duration_s, rel=0.05)
    last = made.step()
    assert last.outputs[0].finished and made.active_blocks == 0


def test_what_it_has_of_the_prompt_does_not_come_again() -> None:
    made = engine()
    made.submit(request("r0", PROMPT[: 16 * BLOCK]))
    while made.has_work:
        made.step()
    made.submit(request("r1", PROMPT, handoff=b"{}"))
    assert made.step().arriving == [("r1", len(PROMPT) - 16 * BLOCK)]


@pytest.mark.parametrize("arriving", [False, True])
def test_one_that_leaves_while_it_waits_lets_go_of_its_blocks(arriving: bool) -> None:
    made = engine()
    made.submit(request("r1", PROMPT, handoff=b"{}"))
    if arriving:
        made.step()
    assert made.abort("r1") and not made.abort("r1")
    made.arrive("r1")  # too late: nothing
    assert made.active_blocks == 0 and not made.has_work
    made.submit(request("r1", PROMPT, 1))
    assert made.step().outputs[0].finished


def test_one_that_has_come_and_waits_gives_its_blocks_back() -> None:
    """It holds them while it waits for its first step."""
    made = engine()
    made.submit(request("r1", PROMPT, handoff=b"{}"))
    made.step()
    made.arrive("r1")
    assert made.waiting == 1 and made.active_blocks
    assert made.abort("r1")
    assert (made.waiting, made.active_blocks) == (0, 0)


def test_the_classic_profile_computes_the_prompt() -> None:
    made = engine(engine_type="classic")
    made.submit(request("r1", PROMPT, handoff=b"{}"))
    assert made.step().prefill_tokens > 0


async def test_live_it_waits_for_the_transfer_and_turns_no_loop_meanwhile() -> None:
    asked: list[int] = []

    def transfer_s(tokens: int) -> float:
        asked.append(tokens)
        return 0.05

    live = LiveEngine(engine(num_gpu_blocks=80), speedup_ratio=10.0, transfer_s=transfer_s)
    steps, step = [0], live.engine.step

    def counted(idle_s: float = 0.0) -> Any:
        steps[0] += 1
        return step(idle_s)

    live.engine.step = counted  # type: ignore[method-assign]
    live.start()
    try:
        first = live.submit(request("r1", PROMPT, 2, handoff=b"{}"))
        await until(lambda: asked == [len(PROMPT)])
        behind = live.submit(request("r2", range(2000, 2000 + 64 * BLOCK), 2, handoff=b"{}"))
        await until(lambda: first.done and behind.done)
        assert first.sequence.finished and behind.sequence.finished
        assert steps[0] < 12, "no step is taken again and again for want of a prompt"
        gone = live.submit(request("r3", PROMPT, 2, handoff=b"{}"))
        await asyncio.sleep(0)
        live.release(gone)
        assert gone.aborted and not live.busy
    finally:
        await live.stop()


def test_how_long_a_transfer_takes() -> None:
    config = MockerConfig(transfer_gbps=1.0, transfer_latency_ms=5.0)
    size = 1000 * config.engine.tiers.kv_bytes_per_token
    assert config.transfer_s(1000) == pytest.approx(0.005 + size / 1e9)
    with pytest.raises(ConfigError, match="transfer_gbps"):
        MockerConfig(transfer_gbps=0.0)
    with pytest.raises(ConfigError, match="transfer_latency_ms"):
        MockerConfig(transfer_latency_ms=-1.0)


def test_aggregated_is_another_word_for_agg() -> None:
    assert MockerConfig(disaggregation_mode="aggregated").disaggregation_mode == "agg"
    with pytest.raises(ConfigError, match="disaggregation_mode"):
        MockerConfig(disaggregation_mode="both")


def test_one_that_leaves_between_its_prompt_and_the_next_step_harms_no_other() -> None:
    made = engine()
    made.submit(request("r1", PROMPT, 3, handoff=b"{}"))
    made.step()
    made.arrive("r1")
    assert made.abort("r1")
    made.submit(request("r2", PROMPT, 1))
    cache: set[int] = set()
    finished = made.step()
    apply(cache, finished.events)
    assert finished.outputs[0].finished and len(cache) == 64
    assert finished.prefill_tokens == BLOCK, "all but the last block of what had come is used"
