"""What a mock engine refuses, and what it does at the edges of its settings."""

import pytest
from support.mock_requests import request

from dynamo_router.base.errors import InvalidRequestError, NoWorkersError
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.engine import MockEngine

SMALL = EngineConfig(block_size=4, num_gpu_blocks=12, max_num_seqs=3, max_num_batched_tokens=10)


@pytest.mark.parametrize(
    ("more", "field", "text"),
    [
        ({"tokens": []}, "input_token_ids", "the prompt is empty"),
        ({"tokens": [5, 32000]}, "input_token_ids", "token id 32000 is not below"),
        (
            {"tokens": range(16)},
            "input_token_ids",
            r"16 tokens, the limit is 15 \(num_gpu_blocks\)",
        ),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1"),
        ({"max_tokens": 15}, "max_tokens", r"together exceed the limit of 16 \(num_gpu_blocks\)"),
        ({"bad_token_ids": frozenset(range(32000))}, "bad_token_ids", "no token is left"),
        ({"seed": 2**64}, "seed", "64 bits"),
        ({"request_id": "taken"}, "request_id", "'taken' is in use"),
    ],
)
def test_a_request_that_can_never_run_is_refused(more, field, text):
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=4))
    engine.submit(request("taken", [1]))
    with pytest.raises(InvalidRequestError, match=text) as caught:
        engine.submit(request(**{"request_id": "a", "tokens": [1, 2], **more}))
    assert caught.value.field == field
    assert engine.waiting == 1


def test_a_full_waiting_queue_turns_requests_away():
    engine = MockEngine(EngineConfig(max_waiting=1))
    engine.submit(request("a", [1]))
    with pytest.raises(NoWorkersError, match="1 requests waiting"):
        engine.submit(request("b", [1]))


def test_an_idle_engine_takes_no_time():
    assert MockEngine(SMALL).step().duration_s == 0


def test_decoding_slows_down_with_the_cache_and_never_speeds_up_again():
    timing = EngineConfig(block_size=10, num_gpu_blocks=100).timing
    times = [timing.decode_ms(tokens, 3) for tokens in range(0, 5000, 10)]
    assert times == sorted(times)
    assert times[0] == pytest.approx(5.74)
    assert times[-1] == pytest.approx(34.01)
    faster = EngineConfig(decode_speedup_ratio=4)
    assert faster.timing.decode_ms(0, 1) == pytest.approx(5.74 / 4)
    assert timing.prefill_ms(0) == 0 == timing.decode_ms(0, 0)
    assert timing.prefill_ms(1000) == pytest.approx(0.4209989 + 15.18344 + 16.50142)
