"""The mock engine in virtual time: what it schedules, emits, refuses and keeps."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from oracles.engine import OracleMockEngine
from support.mock_requests import apply, request, retentions

from dynamo_router.engines.mocker.config import ENGINE_TYPES, PREEMPTION_MODES, EngineConfig
from dynamo_router.engines.mocker.engine import ENGINE_TIERS, MockEngine
from dynamo_router.engines.mocker.tiers import EVICTIONS, TierConfig
from dynamo_router.engines.serving.kv_events import BlocksStored
from dynamo_router.engines.serving.request import EngineRequest
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes

SMALL = EngineConfig(block_size=4, num_gpu_blocks=12, max_num_seqs=3, max_num_batched_tokens=10)


def run(engine: MockEngine) -> list[tuple[float, str, int, bool]]:
    """Step until idle: (time, request, token, finished) of every token."""
    emitted = []
    now = 0.0
    for _ in range(10_000):
        if not engine.has_work:
            break
        result = engine.step()
        now += result.duration_s
        emitted += [
            (now, s.request.request_id, s.output[s.generated - 1], s.finished)
            for s in result.outputs
        ]
    assert not engine.has_work, "livelock"
    return emitted


class EngineMachine(RuleBasedStateMachine):
    """Tiny pools, so that requests wait, share, evict and preempt each other all the time.

    The engine and the plain one take the same calls; what a router would know from the events is
    kept beside them.
    """

    @initialize(
        engine_type=st.sampled_from(ENGINE_TYPES),
        preemption_mode=st.sampled_from(PREEMPTION_MODES),
        chunked=st.booleans(),
        tiers=st.builds(
            TierConfig,
            host_blocks=st.sampled_from([0, 3, 8, 40]),
            disk_blocks=st.sampled_from([0, 5, 40]),
            hide_tiers=st.booleans(),
            eviction=st.sampled_from(EVICTIONS),
        ),
    )
    def start(self, engine_type, preemption_mode, chunked, tiers):
        self.config = replace(
            SMALL,
            engine_type=engine_type,
            preemption_mode=preemption_mode,
            enable_chunked_prefill=chunked,
            max_num_batched_tokens=10 if chunked else 40,
            attention_us_per_ktoken2=5e6,
            tiers=tiers,
        )
        self.now = 0.0
        self.engine = MockEngine(self.config)
        self.plain = OracleMockEngine(self.config)
        self.replayed: dict[str, set[int]] = {tier: set() for tier in ENGINE_TIERS}
        self.open: dict[str, EngineRequest] = {}
        self.received: Counter[str] = Counter()
        self.count = 0

    @rule(
        prefix=st.integers(0, 12),
        own=st.integers(1, 12),
        kind=st.integers(0, 2),
        max_tokens=st.integers(1, 14),
        returning=st.sampled_from([None, None, 0, 5, 12, 99]),
        retention=st.none() | retentions(),
    )
    def submit(self, prefix, own, kind, max_tokens, returning, retention):
        self.count += 1
        tokens = [*range(10, 10 + prefix), *range(100 * kind + 100, 100 * kind + 100 + own)]
        kept = {"returning_tokens": returning, "retention": retention}
        new = request(str(self.count), tokens, max_tokens, **kept)
        self.engine.submit(new)
        self.plain.submit(new)
        self.open[new.request_id] = new

    @rule(
        prefix=st.integers(0, 12),
        own=st.integers(1, 12),
        kind=st.integers(0, 2),
        idle_s=st.sampled_from([0.0, 0.5]),
    )
    def prefetch(self, prefix, own, kind, idle_s):
        tokens = [*range(10, 10 + prefix), *range(100 * kind + 100, 100 * kind + 100 + own)]
        expected = request("", tokens, 1)
        loaded, events = self.engine.prefetch(expected, idle_s)
        assert (loaded, events) == self.plain.prefetch(expected, self.now + idle_s)
        for event in events:
            known = set().union(*self.replayed.values())
            apply(self.replayed[event.tier], [event], known)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        victim = data.draw(st.sampled_from(sorted(self.open)))
        assert self.engine.abort(victim)
        assert not self.engine.abort(victim)
        self.plain.abort(victim)
        del self.open[victim]

    @rule(times=st.integers(1, 4), idle_s=st.sampled_from([0.0, 0.001, 1.0]))
    def step(self, times, idle_s):
        for _ in range(times):
            idle_s *= bool(self.open)  # without work no time passes
            self.now += idle_s
            result, wanted = self.engine.step(idle_s), self.plain.step(self.now)
            assert result.duration_s == wanted.duration_s
            self.now += result.duration_s
            assert result.events == wanted.events
            assert result.prefill_tokens == wanted.prefill_tokens
            assert result.preempted == wanted.preempted
            assert [
                (s.request.request_id, s.generated, s.finished, s.cached_tokens, s.preemptions)
                for s in result.outputs
            ] == [
                (
                    job.sequence.request.request_id,
                    job.generated,
                    job.finished,
                    job.cached_tokens,
                    job.preemptions,
                )
                for job in wanted.outputs
            ]
            for event in result.events:
                known = set().union(*self.replayed.values())
                apply(self.replayed[event.tier], [event], known)
            for sequence in result.outputs:
                request_id = sequence.request.request_id
                self.received[request_id] += 1
                assert sequence.generated == self.received[request_id], "a token twice or lost"
                if sequence.finished:
                    assert self.received[request_id] == self.open.pop(request_id).max_tokens
            self.consistent()

    @invariant()
    def consistent(self):
        engine, kv, scheduler = self.engine, self.plain.kv, self.plain.scheduler
        kv.check_integrity()
        told = {tier: {b.block_hash for b in engine.cached_blocks(tier)} for tier in ENGINE_TIERS}
        assert self.replayed == told
        for tier, blocks in kv.lower.blocks.items():
            assert told[tier] == (set(blocks) if kv.lower.told else set())
            assert not (told["device"] & set(blocks)), "a block in two tiers"
        assert list(engine.cached_blocks()) == list(kv.cached_blocks())
        assert engine.holders() == kv.holders
        assert engine.active_blocks == kv.active_blocks
        assert engine.inactive_blocks == kv.inactive_blocks
        assert engine.active_blocks + engine.inactive_blocks <= self.config.num_gpu_blocks
        assert (engine.running, engine.waiting) == (len(scheduler.running), len(scheduler.waiting))
        assert engine.running <= self.config.max_num_seqs
        assert engine.running + engine.waiting == len(self.open)
        held = Counter(h for job in scheduler.running for h in job.hashes[: job.held])
        assert held == Counter({h: n for h, n in engine.holders().items() if n})
        partial = sum(job.partial is not None for job in scheduler.running)
        assert engine.active_blocks == len(held) + partial, "blocks are lost, or come from nowhere"
        for job in scheduler.waiting:
            assert (job.held, job.partial, job.computed) == (0, None, 0)

    def teardown(self):
        """Whatever happened, everything that is open finishes, and nothing stays held."""
        if not hasattr(self, "engine"):
            return
        for _ in range(10_000):
            if not self.open:
                break
            self.step(1, 0.0)
        assert not self.open, "livelock: a request never finishes"
        assert self.engine.active_blocks == 0


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_two_runs_of_the_same_requests_are_equal_to_the_last_bit():
    def once():
        engine = MockEngine(SMALL)
        for i in range(9):
            engine.submit(request(str(i), range(10, 15 + 2 * i), 5 + i))
        return run(engine)

    first = once()
    assert first == once()
    assert Counter(r for _, r, _, _ in first) == {str(i): 5 + i for i in range(9)}


def test_requests_that_preempt_each_other_all_finish_once_with_the_tokens_they_get_alone():
    def submit(engine, i):
        engine.submit(request(str(i), range(50 * i + 10, 50 * i + 20), 30))

    alone = {}
    for i in range(3):
        engine = MockEngine(SMALL)
        submit(engine, i)
        alone[str(i)] = [token for _, _, token, _ in run(engine)]
    engine = MockEngine(SMALL)
    for i in range(3):
        submit(engine, i)
    preempted, order, tokens = 0, [], {str(i): [] for i in range(3)}
    preemptions = {}
    while engine.has_work:
        result = engine.step()
        preempted += result.preempted
        for s in result.outputs:
            tokens[s.request.request_id].append(s.output[s.generated - 1])
            preemptions[s.request.request_id] = s.preemptions
            order += [s.request.request_id] * s.finished
    assert tokens == alone
    assert preempted == sum(preemptions.values()) > 0
    assert preemptions["0"] == 0, "the oldest request is never preempted"
    assert order == ["0", "1", "2"]


def test_the_second_of_two_equal_prompts_finds_all_but_the_last_token_cached():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=64))
    first = engine.submit(request("a", range(10, 22)))
    run(engine)
    second = engine.submit(request("b", range(10, 22)))
    longer = engine.submit(request("c", range(10, 23)))
    other = engine.submit(request("d", range(11, 23)))
    run(engine)
    found = [s.cached_tokens for s in (first, second, longer, other)]
    # Three full blocks; the last token must be computed, so the third one cannot be taken whole.
    assert found == [0, 8, 12, 0]


def test_salted_and_adapted_prompts_share_nothing():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=64))
    kinds = [{}, {"cache_namespace": "7"}, {"lora_name": "7"}]
    for i, kind in enumerate([*kinds, *kinds]):
        sequence = engine.submit(request(str(i), range(10, 23), **kind))
        run(engine)
        assert sequence.cached_tokens == (0 if i < 3 else 12)


def test_blocks_carry_the_hashes_a_router_computes_also_those_of_generated_tokens():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=64))
    prompt = list(range(10, 20))
    sequence = engine.submit(request("a", prompt, 11))
    events = []
    while engine.has_work:
        events += engine.step().events
    blocks = [b for e in events if isinstance(e, BlocksStored) for b in e.blocks]
    local = block_hashes(np.array(prompt + sequence.output), 4)
    # The key and value of the last token are never computed.
    assert [b.local_hash for b in blocks] == local.tolist() == sequence.local_hashes.tolist()
    assert [b.block_hash for b in blocks] == sequence_hashes(local).tolist()
    tokens = np.concatenate([np.frombuffer(b.token_ids, "<u4") for b in blocks])
    assert tokens.tolist() == (prompt + sequence.output)[:20]


def test_a_long_prompt_is_computed_in_chunks_beside_running_decodes():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=99, max_num_batched_tokens=10))
    timing = engine.config.timing
    engine.submit(request("short", range(10, 14), 9))
    assert engine.step().duration_s * 1000 == timing.prefill_ms(4), "no decode in it"
    engine.submit(request("long", range(100, 125), 2))
    steps = [engine.step() for _ in range(3)]
    assert [s.prefill_tokens for s in steps] == [9, 9, 7]
    assert [len(s.outputs) for s in steps] == [1, 1, 2]
    assert steps[0].duration_s * 1000 == timing.prefill_ms(9) + timing.decode_ms(5, 1)
    assert steps[1].duration_s * 1000 == timing.prefill_ms(9) + timing.decode_ms(6, 1)


def test_without_chunks_a_prompt_waits_for_a_step_that_takes_it_whole():
    config = EngineConfig(
        block_size=4, num_gpu_blocks=99, max_num_batched_tokens=10, enable_chunked_prefill=False
    )
    assert config.max_seq_len == 10
    engine = MockEngine(config)
    engine.submit(request("a", range(10, 16), 3))
    engine.submit(request("b", range(20, 26), 3))
    engine.submit(request("c", range(30, 32), 3))
    steps = [engine.step() for _ in range(2)]
    assert [s.prefill_tokens for s in steps] == [6, 8], "c does not overtake b"


def test_at_most_max_num_seqs_run_and_the_watermark_keeps_blocks_free():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=99, max_num_seqs=2))
    for i in range(3):
        engine.submit(request(str(i), range(10, 14), 9))
    engine.step()
    assert (engine.running, engine.waiting) == (2, 1)
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=10, watermark=0.3))
    for i in range(3):
        engine.submit(request(str(i), range(100 * i, 100 * i + 16), 2))
    engine.step()
    assert (engine.running, engine.waiting) == (1, 2), "8 of 10 blocks would leave less than 30 %"
    assert len(run(engine)) == 5


def test_a_request_as_large_as_the_cache_runs_whatever_the_watermark():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=10, watermark=0.5))
    engine.submit(request("a", range(36), 4))
    engine.submit(request("b", range(36), 4))
    assert Counter(r for _, r, _, _ in run(engine)) == {"a": 4, "b": 4}


def test_stop_tokens_end_the_output_and_are_shown_only_on_request():
    config = EngineConfig(block_size=4, num_gpu_blocks=99)

    def generate(**more):
        sequence = MockEngine(config).submit(request("a", range(10, 20), 12, **more))
        return sequence, sequence.output[: sequence.visible]

    whole, tokens = generate()
    assert (whole.finish_reason, whole.matched_stop, len(tokens)) == ("length", None, 12)
    stop = tokens[5]
    at = tokens.index(stop)
    ended, shown = generate(stop_token_ids=frozenset({stop, 10**6}))
    assert (shown, ended.finish_reason, ended.matched_stop) == (tokens[:at], "stop", stop)
    _, shown = generate(stop_token_ids=frozenset({stop}), keep_stop_token=True)
    assert shown == tokens[: at + 1]
    later, shown = generate(stop_token_ids=frozenset({stop}), min_tokens=12)
    assert (later.finish_reason, shown) == ("length", tokens)


def test_output_depends_on_prompt_and_seed_and_avoids_what_it_must():
    config = EngineConfig(vocab_size=8)

    def output(prompt, n=200, **more):
        return MockEngine(config).submit(request("a", prompt, n, **more)).output

    assert output([1, 2, 3]) == output([1, 2, 3])
    assert output([1, 2, 3])[:50] == output([1, 2, 3], 50)
    assert output([1, 2, 3]) != output([1, 2, 4])
    assert output([1, 2, 3]) != output([1, 2, 3], seed=2**64 - 1)
    assert set(output([1, 2, 3])) == {0, 1, 3, 4, 5, 6, 7}
    assert set(output([1, 2, 3], bad_token_ids=frozenset({0, 1, 7, 99}))) == {3, 4, 5, 6}


@pytest.mark.parametrize("more", [{}, {"seed": 7}, {"bad_token_ids": frozenset({0, 7, 99})}])
def test_a_prompt_with_a_part_of_its_output_gets_the_rest(more: dict[str, object]) -> None:
    config = EngineConfig(vocab_size=64)
    prompt = [9, 2, 63, 0, 41]
    whole = MockEngine(config).submit(request("a", prompt, 40, **more)).output
    for come in (1, 2, 17, 39):
        rest = request("a", prompt + whole[:come], 40 - come, **more)
        assert MockEngine(config).submit(rest).output == whole[come:]
        lost = request("a", prompt + whole[: come - 1], 40 - come, **more)
        assert MockEngine(config).submit(lost).output != whole[come:]


def test_an_answer_of_open_length_ends_as_a_models_would():
    """One that may fill the context: its client gave no max_tokens."""
    config = EngineConfig(block_size=4, num_gpu_blocks=9999, max_model_len=4096)

    def generate(prompt, length, **more):
        return MockEngine(config).submit(request("a", prompt, length, **more))

    lengths, prompts = [], [range(start, start + 96) for start in range(400)]
    for prompt in prompts:
        ended = generate(prompt, 4000)
        lengths.append(len(ended.output))
        assert (ended.finish_reason, ended.visible) == ("stop", len(ended.output))
        asked = generate(prompt, 3999)  # asked for so many
        assert (asked.finish_reason, len(asked.output)) == ("length", 3999)
        assert asked.output[: lengths[-1]] == ended.output
    assert 100 < sum(lengths) / len(lengths) < 160 and max(lengths) < 1500
    whole, half = generate(prompts[0], 4000), lengths[0] // 2
    moved = generate([*prompts[0], *whole.output[:half]], 4000 - half)
    assert [*whole.output[:half], *moved.output] == whole.output
    assert len(generate(prompts[0], 4000, ignore_eos=True).output) == 4000
    assert len(generate(prompts[0], 4000, min_tokens=3000).output) >= 3000
