"""Retention: TensorRT-LLM's configuration, read into spans of blocks, and kept by a mock engine."""

import math

import pytest
from support.mock_requests import request

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.engine import MockEngine
from dynamo_router.engines.serving.request import trtllm_request
from dynamo_router.workers.retention import Retention, Span, TokenRange, returning_spans
from dynamo_router.workers.trtllm_proto import pb

LAST = 2**32 - 1


def test_a_range_counts_for_the_blocks_whose_first_token_is_in_it() -> None:
    text = """{"token_range_retention_configs": [
        {"token_start": 0, "token_end": 5, "priority": 90, "duration_ms": 1500},
        {"token_start": 5, "token_end": null, "priority": 10}],
        "decode_retention_priority": 50, "decode_duration_ms": 250, "transfer_mode": "DRAM"}"""
    assert Retention.read(text).spans(14, 4) == [
        Span(0, 2, 90, 1.5),
        Span(2, 4, 10, math.inf),
        Span(4, LAST, 50, 0.25),
    ]
    assert Retention.read("").spans(14, 4) == [Span(4, LAST, 35, math.inf)]
    assert Retention.read(Retention.whole(80, 2.0).json()).spans(14, 4) == [
        Span(0, 4, 80, 2.0),
        Span(4, LAST, 80, 2.0),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"decode_retention_priority": 101}',
        '{"token_range_retention_configs": [{"priority": -1}]}',
        '{"token_range_retention_configs": [{"duration_ms": 0}]}',
        '{"token_range_retention_configs": [{"token_start": -4}]}',
        '{"token_range_retention_configs": [' + ",".join(["{}"] * 65) + "]}",
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(text: str) -> None:
    message = pb.GenerateRequest(kv_cache_retention=pb.KvCacheRetentionConfig(config_json=text))
    message.tokenized.input_token_ids.extend(range(9))
    with pytest.raises(InvalidRequestError, match=r"kv_cache_retention\.config_json"):
        trtllm_request(message, "a", None)


def test_the_field_of_a_request_goes_before_its_header() -> None:
    asked = pb.KvCacheRetentionConfig(config_json='{"decode_retention_priority": 7}')
    message = pb.GenerateRequest(kv_cache_retention=asked)
    message.tokenized.input_token_ids.extend(range(9))
    assert trtllm_request(message, "a", None, 8).retention_spans(4) == [Span(3, LAST, 7, math.inf)]
    message.ClearField("kv_cache_retention")
    assert trtllm_request(message, "a", None, 8).retention_spans(4) == returning_spans(8, 4)
    assert trtllm_request(message, "a", None).retention_spans(4) is None


def serve(engine: MockEngine, first: int, **asked: object) -> None:
    engine.submit(request("a", range(first, first + 9), 1, **asked))
    while engine.has_work:
        engine.step()


def firsts(engine: MockEngine) -> list[int]:
    return sorted(block.token_ids[0] for block in engine.cached_blocks())


def test_a_priority_ends_with_its_duration() -> None:
    def left(idle_s: float) -> list[int]:
        engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=5))
        serve(engine, 0, retention=Retention.whole(90, 100.0))
        engine.submit(request("a", range(100, 109), 1))
        engine.step(idle_s)
        serve(engine, 200)
        return firsts(engine)

    assert left(1.0) == [0, 4, 200, 204]
    assert left(101.0) == [100, 104, 200, 204], "its time was over before the others came"


def test_ranges_of_one_prompt_leave_by_their_priorities() -> None:
    engine = MockEngine(EngineConfig(block_size=4, num_gpu_blocks=5))
    ranges = (TokenRange(token_end=4, priority=90), TokenRange(token_start=4, priority=0))
    serve(engine, 0, retention=Retention(token_range_retention_configs=ranges))
    serve(engine, 100)
    serve(engine, 200)
    assert firsts(engine) == [0, 100, 200, 204]
