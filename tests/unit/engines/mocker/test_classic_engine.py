"""The classic profile step by step, and who is preempted under each mode."""

from collections import Counter

import pytest
from support.mock_requests import request

from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.engine import MockEngine, StepResult


def engine(**more: object) -> MockEngine:
    settings = {"block_size": 4, "num_gpu_blocks": 99, "max_num_batched_tokens": 10, **more}
    return MockEngine(EngineConfig(engine_type="classic", **settings))


def got_tokens(step: StepResult) -> list[str]:
    return [sequence.request.request_id for sequence in step.outputs]


def test_a_prompt_brings_its_first_token_in_the_step_that_ends_it_and_pays_for_both():
    classic = engine()
    classic.submit(request("a", range(8), 2))
    timing = classic.config.timing
    first = classic.step()
    assert got_tokens(first) == ["a"]
    assert first.duration_s * 1000 == timing.prefill_ms(8) + timing.decode_ms(8, 1)
    second = classic.step()
    assert second.duration_s * 1000 == timing.decode_ms(9, 1)
    assert not classic.has_work


def test_all_blocks_of_a_prompt_are_taken_and_told_at_its_first_chunk():
    classic = engine()
    classic.submit(request("long", range(24), 1))
    first = classic.step()
    assert first.prefill_tokens == 10 and got_tokens(first) == []
    assert [len(event.blocks) for event in first.events] == [6]
    assert classic.active_blocks == 6
    assert [classic.step().prefill_tokens for _ in range(2)] == [10, 4]


def test_a_chunk_ends_the_phase_and_running_decodes_come_first():
    classic = engine()
    classic.submit(request("short", range(4), 9))
    assert got_tokens(classic.step()) == ["short"]
    for name, start in (("long", 100), ("next", 200)):
        classic.submit(request(name, range(start, start + 15), 2))
    steps = [classic.step() for _ in range(4)]
    # Nine tokens beside one decode; then what is left of `long`, and a chunk of `next`.
    assert [step.prefill_tokens for step in steps] == [9, 9, 8, 4]
    assert [got_tokens(step) for step in steps] == [
        ["short"],
        ["short", "long"],
        ["short", "long"],
        ["short", "next"],
    ]


def test_admission_counts_blocks_as_if_nothing_were_cached_and_keeps_the_watermark():
    def running(watermark: float | None, **more: object) -> int:
        classic = engine(num_gpu_blocks=10, watermark=watermark, max_num_batched_tokens=999, **more)
        for number in range(3):
            classic.submit(request(str(number), range(16), 2))  # 4 blocks, the same for all
        classic.step()
        return classic.running

    assert running(0.0) == 2, "12 blocks are not there, though 4 would do"
    assert running(0.3) == 1
    assert EngineConfig(engine_type="classic", num_gpu_blocks=1000).admission_blocks == 990
    assert EngineConfig(num_gpu_blocks=1000).admission_blocks == 1000


def test_the_token_budget_admits_one_prompt_more_than_it_can_compute_in_chunks_only():
    prompts = [range(100 * n, 100 * n + 7) for n in range(3)]
    chunked, whole = engine(), engine(enable_chunked_prefill=False)
    for each in (chunked, whole):
        for number, prompt in enumerate(prompts):
            each.submit(request(str(number), prompt, 3))
    first = chunked.step()
    assert (first.prefill_tokens, chunked.running) == (10, 2)
    first = whole.step()
    assert (first.prefill_tokens, whole.running) == (7, 1)


def test_the_first_one_that_does_not_fit_stops_those_behind_it():
    classic = engine(num_gpu_blocks=10, watermark=0.0, max_num_batched_tokens=99)
    for name, length in (("a", 20), ("large", 30), ("small", 4)):
        classic.submit(request(name, range(length), 2))
    classic.step()
    assert (classic.running, classic.waiting) == (1, 2)


@pytest.mark.parametrize("engine_type", ["classic", "vllm"])
def test_the_youngest_or_the_oldest_gives_way(engine_type):
    def preemptions(mode: str | None) -> list[int]:
        tight = MockEngine(
            EngineConfig(
                engine_type=engine_type,
                preemption_mode=mode,
                block_size=4,
                num_gpu_blocks=7,
                watermark=0.0,
            )
        )
        sequences = [tight.submit(request(str(n), range(9 * n, 9 * n + 8), 16)) for n in range(3)]
        tokens: Counter[str] = Counter()
        for _ in range(1000):
            tokens.update(got_tokens(tight.step()))
        assert tokens == {"0": 16, "1": 16, "2": 16} and not tight.has_work
        return [sequence.preemptions for sequence in sequences]

    youngest, oldest = preemptions("lifo"), preemptions("fifo")
    assert youngest[0] == 0 and youngest[2] > 0
    assert oldest[0] > 0
    assert preemptions(None) == (oldest if engine_type == "classic" else youngest)
