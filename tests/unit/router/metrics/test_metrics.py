"""Histograms that sort late, and what is read of a request's end."""

import grpc
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.fake_engine import chunk, complete, prompt

from dynamo_router.router.dispatch.generate_request import read_generate
from dynamo_router.router.dispatch.request import Flight
from dynamo_router.router.metrics.requests import FOLD_AT, KEPT_MESSAGES, Histogram, RequestMetrics
from dynamo_router.router.policy.decision import Decision
from dynamo_router.runtime.identity import WorkerWithDpRank

BOUNDS = (1, 2, 4)


def buckets(histogram: Histogram) -> dict[str, float]:
    samples = histogram.family().samples
    return {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}


@given(st.lists(st.floats(0, 8, width=16), max_size=50))
def test_buckets_are_cumulative_and_take_their_bound_in(values: list[float]) -> None:
    histogram = Histogram("h", "", BOUNDS)
    for value in values:
        histogram.observe(value)
    wanted = {str(float(b)): sum(v <= b for v in values) for b in BOUNDS}
    assert buckets(histogram) == {**wanted, "+Inf": len(values)}
    (total,) = [s.value for s in histogram.family().samples if s.name == "h_sum"]
    assert np.isclose(total, sum(values))


def test_what_waits_is_bounded() -> None:
    histogram = Histogram("h", "", BOUNDS)
    for _ in range(3 * FOLD_AT + 5):
        histogram.observe(1.0)
        assert len(histogram._new) < FOLD_AT
    assert buckets(histogram)["+Inf"] == 3 * FOLD_AT + 5


def flight(*messages: bytes, sequences: int = 1) -> Flight:
    request = prompt(tokens=64)
    request.sampling_config.num_return_sequences = sequences
    body = request.SerializeToString()
    decision = Decision(WorkerWithDpRank(1), 0, 1, 2, 32, "r1")
    made = Flight("r1", body, read_generate(body, 16), 0.0, decision=decision)
    made.messages = len(messages)
    made.last_message = messages[-1] if messages else b""
    return made


def samples(metrics: RequestMetrics) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def end(request: object, *tokens: int) -> bytes:
    return bytes(complete(request, *tokens).SerializeToString())


def test_an_answer_is_counted_by_its_last_message() -> None:
    metrics, request = RequestMetrics(lambda: 0), prompt()
    for _ in range(KEPT_MESSAGES + 1):
        metrics.on_end(flight(b"", end(request, 1, 2, 3)), grpc.StatusCode.OK)
        assert len(metrics._last_messages) < KEPT_MESSAGES
    told = samples(metrics)
    assert told["dynamo_component_router_output_sequence_tokens_sum"] == 3 * (KEPT_MESSAGES + 1)
    assert told["dynamo_component_router_kv_hit_rate_sum"] == 0.5 * (KEPT_MESSAGES + 1)


def test_several_answers_are_counted_one_by_one() -> None:
    metrics, request = RequestMetrics(lambda: 0), prompt()
    several = flight(sequences=2)
    for message in (chunk(request, 5).SerializeToString(), end(request, 1, 2), end(request, 1)):
        metrics.on_message(several, message, 1.0)
        several.messages, several.last_message = several.messages + 1, message
    metrics.on_end(several, grpc.StatusCode.OK)
    told = samples(metrics)
    assert told["dynamo_component_router_output_sequence_tokens_count"] == 2
    assert told["dynamo_component_router_output_sequence_tokens_sum"] == 3


def test_cut_off_and_unreadable_answers_do_no_harm() -> None:
    metrics = RequestMetrics(lambda: 2)
    metrics.on_end(flight(b"\xff\xff"), grpc.StatusCode.UNAVAILABLE)
    metrics.on_end(flight(), grpc.StatusCode.CANCELLED)
    metrics.on_end(None, grpc.StatusCode.INVALID_ARGUMENT)
    told = samples(metrics)
    assert told["dynamo_component_router_output_sequence_tokens_count"] == 0
    assert told["dynamo_component_router_requests_totalcancelled"] == 1
    assert told["dynamo_component_router_requests_started_total"] == 5
