"""The mock engine in virtual time: what it schedules, emits, refuses and keeps."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mock_requests import apply, request

from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.runtime.errors import InvalidRequestError, NoWorkersError
from dynamo_router.workers.mocker.config import EngineConfig
from dynamo_router.workers.mocker.engine import MockEngine
from dynamo_router.workers.mocker.kv_events import BlocksStored
from dynamo_router.workers.mocker.sequence import EngineRequest
from dynamo_router.workers.mocker.timing import PolynomialTiming

SMALL = EngineConfig(block_size=4, num_gpu_blocks=12, max_num_seqs=3, max_num_batched_tokens=10)


def run(engine: MockEngine, now: float = 0.0) -> list[tuple[float, str, int, bool]]:
    """Step until idle: (time, request, token, finished) of every token."""
    emitted = []
    for _ in range(10_000):
        if not engine.has_work:
            break
        result = engine.step(now)
        now += result.duration_s
        emitted += [
            (now, s.request.request_id, s.output[s.generated - 1], s.finished)
            for s in result.outputs
        ]
    assert not engine.has_work, "livelock"
    return emitted


class EngineMachine(RuleBasedStateMachine):
    """Tiny pools, so that requests wait, share, evict and preempt each other all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = MockEngine(SMALL)
        self.now = 0.0
        self.replayed: set[int] = set()
        self.open: dict[str, EngineRequest] = {}
        self.received: Counter[str] = Counter()
        self.count = 0

    @rule(
        prefix=st.integers(0, 12),
        own=st.integers(1, 12),
        kind=st.integers(0, 2),
        max_tokens=st.integers(1, 14),
    )
    def submit(self, prefix, own, kind, max_tokens):
        self.count += 1
        tokens = [*range(10, 10 + prefix), *range(100 * kind + 100, 100 * kind + 100 + own)]
        new = request(str(self.count), tokens, max_tokens)
        self.engine.submit(new, self.now)
        self.open[new.request_id] = new

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        victim = data.draw(st.sampled_from(sorted(self.open)))
        assert self.engine.abort(victim)
        assert not self.engine.abort(victim)
        del self.open[victim]

    @rule(times=st.integers(1, 4))
    def step(self, times):
        for _ in range(times):
            had_work = self.engine.has_work
            result = self.engine.step(self.now)
            self.now += result.duration_s
            assert had_work == (result.duration_s > 0), (
                "work without a step, or a step without work"
            )
            assert len(result.outputs) <= SMALL.max_num_seqs
            apply(self.replayed, result.events)
            for sequence in result.outputs:
                request_id = sequence.request.request_id
                self.received[request_id] += 1
                assert sequence.generated == self.received[request_id], "a token twice or lost"
                if sequence.finished:
                    assert self.received[request_id] == self.open.pop(request_id).max_tokens
            self.consistent()

    @invariant()
    def consistent(self):
        kv, scheduler = self.engine.kv, self.engine._scheduler
        kv.check_integrity()
        assert self.replayed == {b.block_hash for b in kv.cached_blocks()}
        assert len(scheduler.running) <= SMALL.max_num_seqs
        here = [s.request.request_id for s in [*scheduler.running, *scheduler.waiting]]
        assert sorted(here) == sorted(self.open)
        held = Counter(h for s in scheduler.running for h in s.hashes[: s.held])
        held.update(s.partial for s in scheduler.running if s.partial is not None)
        assert held == Counter(kv._holders), "reference counts are not the holders"
        for sequence in scheduler.running:
            blocks = sequence.held + (sequence.partial is not None)
            assert (blocks - 1) * 4 < sequence.computed <= blocks * 4
            assert sequence.computed < sequence.known <= sequence.prompt_len + len(sequence.output)
        for sequence in scheduler.waiting:
            assert (sequence.held, sequence.partial, sequence.computed) == (0, None, 0)

    def teardown(self):
        """Whatever happened, everything that is open finishes, and nothing stays held."""
        for _ in range(10_000):
            if not self.open:
                break
            self.step(1)
        assert not self.open, "a request never finishes"
        assert self.engine.kv.active_blocks == 0


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_two_runs_of_the_same_requests_are_equal_to_the_last_bit():
    def once():
        engine = MockEngine(SMALL)
        for i in range(9):
            engine.submit(request(str(i), range(10, 15 + 2 * i), 5 + i), 0.0)
        return run(engine)

    first = once()
    assert first == once()
    assert Counter(r for _, r, _, _ in first) == {str(i): 5 + i for i in range(9)}


def test_requests_that_preempt_each_other_all_finish_once_with_the_tokens_they_get_alone():
    def submit(engine, i):
        engine.submit(request(str(i), range(50 * i + 10, 50 * i + 20), 30), 0.0)

    alone = {}
    for i in range(3):
        engine = MockEngine(SMALL)
        submit(engine, i)
        alone[str(i)] = [token for _, _, token, _ in run(engine)]
    engine = MockEngine(SMALL)
    for i in range(3):
        submit(engine, i)
    victims, order, tokens = Counter(), [], {str(i): [] for i in range(3)}
    while engine.has_work:
        before = list(engine._scheduler.running)
        result = engine.step(0.0)
        for sequence in before[len(before) - result.preempted :]:
            victims[sequence.request.request_id] += 1
            assert sequence not in engine._scheduler.running, "back in the very same step"
        for s in result.outputs:
            tokens[s.request.request_id].append(s.output[s.generated - 1])
            order += [s.request.request_id] * s.finished
    assert tokens == alone
    assert victims and "0" not in victims, "the oldest request is never preempted"
    assert order == ["0", "1", "2"]


def test_the_second_of_two_equal_prompts_finds_all_but_the_last_token_cached():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=64))
    first = engine.submit(request("a", range(10, 22)), 0.0)
    run(engine)
    second = engine.submit(request("b", range(10, 22)), 0.0)
    longer = engine.submit(request("c", range(10, 23)), 0.0)
    other = engine.submit(request("d", range(11, 23)), 0.0)
    run(engine)
    found = [s.cached_tokens for s in (first, second, longer, other)]
    # Three full blocks; the last token must be computed, so the third one cannot be taken whole.
    assert found == [0, 8, 12, 0]


def test_salted_and_adapted_prompts_share_nothing():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=64))
    kinds = [{}, {"cache_namespace": "7"}, {"lora_name": "7"}]
    for i, kind in enumerate([*kinds, *kinds]):
        sequence = engine.submit(request(str(i), range(10, 23), **kind), 0.0)
        run(engine)
        assert sequence.cached_tokens == (0 if i < 3 else 12)


def test_blocks_carry_the_hashes_a_router_computes_also_those_of_generated_tokens():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=64))
    prompt = list(range(10, 20))
    sequence = engine.submit(request("a", prompt, 11), 0.0)
    events = []
    while engine.has_work:
        events += engine.step(0.0).events
    blocks = [b for e in events if isinstance(e, BlocksStored) for b in e.blocks]
    local = block_hashes(np.array(prompt + sequence.output), 4)
    # The key and value of the last token are never computed.
    assert [b.local_hash for b in blocks] == local.tolist() == sequence.local_hashes
    assert [b.block_hash for b in blocks] == sequence_hashes(local).tolist()
    tokens = np.concatenate([np.frombuffer(b.token_ids, "<u4") for b in blocks])
    assert tokens.tolist() == (prompt + sequence.output)[:20]


def test_a_long_prompt_is_computed_in_chunks_beside_running_decodes():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=99, max_num_batched_tokens=10))
    timing = PolynomialTiming(4 * 99)
    engine.submit(request("short", range(10, 14), 9), 0.0)
    assert engine.step(0.0).duration_s * 1000 == timing.prefill_ms(4), "no decode in it"
    engine.submit(request("long", range(100, 125), 2), 0.0)
    steps = [engine.step(0.0) for _ in range(3)]
    assert [s.prefill_tokens for s in steps] == [9, 9, 7]
    assert [len(s.outputs) for s in steps] == [1, 1, 2]
    assert steps[0].duration_s * 1000 == timing.prefill_ms(9) + timing.decode_ms(5)
    assert steps[1].duration_s * 1000 == timing.prefill_ms(9) + timing.decode_ms(6)


def test_without_chunks_a_prompt_waits_for_a_step_that_takes_it_whole():
    config = EngineConfig(
        block_size=4, num_gpu_blocks=99, max_num_batched_tokens=10, enable_chunked_prefill=False
    )
    assert config.max_seq_len == 10
    engine = MockEngine(config)
    engine.submit(request("a", range(10, 16), 3), 0.0)
    engine.submit(request("b", range(20, 26), 3), 0.0)
    engine.submit(request("c", range(30, 32), 3), 0.0)
    steps = [engine.step(0.0) for _ in range(2)]
    assert [s.prefill_tokens for s in steps] == [6, 8], "c does not overtake b"


def test_at_most_max_num_seqs_run_and_the_watermark_keeps_blocks_free():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=99, max_num_seqs=2))
    for i in range(3):
        engine.submit(request(str(i), range(10, 14), 9), 0.0)
    engine.step(0.0)
    assert (engine.running, engine.waiting) == (2, 1)
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=10, watermark=0.3))
    for i in range(3):
        engine.submit(request(str(i), range(100 * i, 100 * i + 16), 2), 0.0)
    engine.step(0.0)
    assert (engine.running, engine.waiting) == (1, 2), "8 of 10 blocks would leave less than 30 %"
    assert len(run(engine)) == 5


def test_a_request_as_large_as_the_cache_runs_whatever_the_watermark():
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=10, watermark=0.5))
    engine.submit(request("a", range(36), 4), 0.0)
    engine.submit(request("b", range(36), 4), 0.0)
    assert Counter(r for _, r, _, _ in run(engine)) == {"a": 4, "b": 4}


def test_stop_tokens_end_the_output_and_are_shown_only_on_request():
    config = EngineConfig(block_size=4, num_gpu_blocks=99)

    def generate(**more):
        sequence = MockEngine(config).submit(request("a", range(10, 20), 12, **more), 0.0)
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
    config = EngineConfig(vocab_size=8, eos_token_id=2)

    def output(prompt, n=200, **more):
        return MockEngine(config).submit(request("a", prompt, n, **more), 0.0).output

    assert output([1, 2, 3]) == output([1, 2, 3])
    assert output([1, 2, 3])[:50] == output([1, 2, 3], 50)
    assert output([1, 2, 3]) != output([1, 2, 4])
    assert output([1, 2, 3]) != output([1, 2, 3], seed=2**64 - 1)
    assert set(output([1, 2, 3])) == {0, 1, 3, 4, 5, 6, 7}
    assert set(output([1, 2, 3], bad_token_ids=frozenset({0, 1, 7, 99}))) == {3, 4, 5, 6}


@pytest.mark.parametrize(
    ("more", "field", "text"),
    [
        ({"tokens": []}, "input_token_ids", "the prompt is empty"),
        ({"tokens": [5, 32000]}, "input_token_ids", "token id 32000 is not below"),
        ({"tokens": range(16)}, "input_token_ids", "16 tokens, the limit is 15"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1"),
        ({"max_tokens": 15}, "max_tokens", "together exceed the limit of 16"),
        ({"bad_token_ids": frozenset(range(32000))}, "bad_token_ids", "no token is left"),
        ({"seed": 2**64}, "seed", "64 bits"),
        ({"request_id": "taken"}, "request_id", "'taken' is in use"),
    ],
)
def test_a_request_that_can_never_run_is_refused(more, field, text):
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=4))
    engine.submit(request("taken", [1]), 0.0)
    with pytest.raises(InvalidRequestError, match=text) as caught:
        engine.submit(request(**{"request_id": "a", "tokens": [1, 2], **more}), 0.0)
    assert caught.value.field == field
    assert engine.waiting == 1


def test_a_full_waiting_queue_turns_requests_away():
    engine = MockEngine(EngineConfig(max_waiting=1))
    engine.submit(request("a", [1]), 0.0)
    with pytest.raises(NoWorkersError, match="1 requests waiting"):
        engine.submit(request("b", [1]), 0.0)


def test_an_idle_engine_takes_no_time():
    assert MockEngine(SMALL).step(1.0).duration_s == 0


def test_decoding_slows_down_with_the_cache_and_never_speeds_up_again():
    timing = PolynomialTiming(1000)
    times = [timing.decode_ms(tokens) for tokens in range(0, 5000, 10)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(5.74)
    assert times[-1] == pytest.approx(34.01)
    assert PolynomialTiming(1000, decode_speedup=4).decode_ms(0) == pytest.approx(5.74 / 4)
    assert timing.prefill_ms(0) == 0
    assert timing.prefill_ms(1000) == pytest.approx(0.4209989 + 15.18344 + 16.50142)
