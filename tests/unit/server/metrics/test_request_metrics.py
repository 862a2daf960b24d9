"""What is counted of requests: by message, by end, by worker."""

import pytest
from structlog.testing import capture_logs
from support.fake_engine import chunk, complete, prompt

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import StatusCode
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission import NO_OBJECTIVES, Objectives
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy.decision import Decision
from dynamo_router.server.dispatch.generate_request import read_generate
from dynamo_router.server.dispatch.observers import MOST_GAPS
from dynamo_router.server.dispatch.request import Attempt, Request
from dynamo_router.server.dispatch.retries import FailedAttempt, FailedAttempts
from dynamo_router.server.metrics import requests
from dynamo_router.server.metrics.requests import (
    BUCKETS,
    KEPT_MESSAGES,
    OUTCOMES,
    REQUEST_COUNTS,
    RequestMetrics,
)
from dynamo_router.server.metrics.worker_requests import WorkerRequests
from dynamo_router.workers.failures import Origin, judge
from dynamo_router.workers.registry import WorkerRegistry


class Fixture:
    """Metrics of requests at a time that the test sets."""

    def __init__(self, in_flight: int = 0) -> None:
        self.clock = ManualClock()
        self.registry = WorkerRegistry()
        self.registry.add(1)
        self.workers = WorkerRequests(self.registry)
        self.metrics = RequestMetrics(lambda: in_flight, self.clock, self.workers)

    def on_message(self, request: Request, at: float, message: bytes = b"") -> None:
        """A message of the request comes."""
        assert request.attempt is not None
        self.metrics.on_message(request, request.attempt, message, 0, at)
        request.attempt.messages += 1
        request.first_message_at = request.first_message_at or at
        request.last_message, request.last_message_at = message, at


def in_flight(
    *messages: bytes,
    sequences: int = 1,
    streaming: bool = True,
    queue_s: float = 0.0,
    sent_at: float = 0.0,
    objectives: Objectives = NO_OBJECTIVES,
    failures: FailedAttempts | None = None,
) -> Request:
    """A request on worker 1, which has sent these messages."""
    asked = prompt(tokens=64)
    asked.streaming = streaming
    asked.sampling_config.num_return_sequences = sequences
    body = asked.SerializeToString()
    facts = read_generate(body, 16)
    placement = Placement(facts.prompt, "r1", objectives=objectives)
    failures = FailedAttempts(3) if failures is None else failures
    request = Request("r1", body, facts, 0.0, placement, failures=failures)
    decision = Decision(WorkerWithDpRank(1), 0, 1, 2, 32, "r1")
    request.attempt = Attempt(
        decision, 1, "r1", None, sent_at, sent_at, 0, queue_s, 0.0, PairDecision(decision)
    )
    request.attempt.messages = len(messages)
    if messages:
        request.first_message_at, request.last_message = 0.0, messages[-1]
    return request


def samples(metrics: RequestMetrics) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def end(request: object, *tokens: int) -> bytes:
    return bytes(complete(request, *tokens).SerializeToString())


def test_an_answer_is_counted_by_its_last_message() -> None:
    metrics, request = Fixture().metrics, prompt()
    for _ in range(KEPT_MESSAGES + 1):
        metrics.on_end(in_flight(b"", end(request, 1, 2, 3)), StatusCode.OK)
        assert len(metrics._last_messages) < KEPT_MESSAGES
    told = samples(metrics)
    assert told["dynamo_component_router_output_sequence_tokens_sum"] == 3 * (KEPT_MESSAGES + 1)
    assert told["dynamo_component_router_kv_hit_rate_sum"] == 0.5 * (KEPT_MESSAGES + 1)


def test_a_request_that_cannot_be_counted_leaves_the_others_their_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics, request = Fixture().metrics, prompt()
    usage_of = requests.usage_of

    def flawed(message: bytes) -> object:
        if message == b"flawed":
            raise ZeroDivisionError("of one message")
        return usage_of(message)

    monkeypatch.setattr(requests, "usage_of", flawed)
    ended = [in_flight(b"", end(request, 1, 2, 3)) for _ in range(5)]
    assert ended[1].attempt is not None
    ended[1].attempt.decision = Decision(WorkerWithDpRank(1), 0, 1, 0, 0, "r1")  # of no block
    ended[3].last_message = b"flawed"
    with capture_logs() as logs:
        for each in ended:
            metrics.on_end(each, StatusCode.OK)
        told = samples(metrics)
    assert told["dynamo_router_request_duration_seconds_count"] == 4
    assert told["dynamo_router_overlap_blocks_totaldevice"] == 4
    assert told["dynamo_component_router_output_sequence_tokens_count"] == 3
    assert [line["log_level"] for line in logs] == ["error", "error"]


def test_several_answers_are_counted_one_by_one() -> None:
    fixture, request = Fixture(), prompt()
    several = in_flight(sequences=2)
    for message in (chunk(request, 5).SerializeToString(), end(request, 1, 2), end(request, 1)):
        fixture.on_message(several, 1.0, message)
    fixture.metrics.on_end(several, StatusCode.OK)
    told = samples(fixture.metrics)
    assert told["dynamo_component_router_output_sequence_tokens_count"] == 2
    assert told["dynamo_component_router_output_sequence_tokens_sum"] == 3


def test_cut_off_and_unreadable_answers_do_no_harm() -> None:
    metrics = Fixture(2).metrics
    metrics.on_end(in_flight(b"\xff\xff"), StatusCode.UNAVAILABLE)
    metrics.on_end(in_flight(), StatusCode.CANCELLED)
    metrics.on_end(None, StatusCode.INVALID_ARGUMENT)
    told = samples(metrics)
    assert told["dynamo_component_router_output_sequence_tokens_count"] == 0
    assert told["dynamo_component_router_requests_totalcancelled"] == 1
    assert told["dynamo_component_router_requests_started_total"] == 5


FIRST = "dynamo_component_router_time_to_first_token_seconds"
BETWEEN = "dynamo_component_router_inter_token_latency_seconds"


def test_a_whole_answer_is_no_first_token() -> None:
    told = Fixture()
    told.on_message(in_flight(streaming=False), 3.0)
    told.on_message(in_flight(), 2.0)
    seen = samples(told.metrics)
    assert (seen[f"{FIRST}_count"], seen[f"{FIRST}_sum"]) == (1, 2.0)
    counts = told.workers.counts(1)
    assert counts is not None and (counts.answers, counts.answer_s) == (1, 2.0)


def test_the_pace_of_several_answers_is_not_mixed() -> None:
    told = Fixture()
    one, two = in_flight(), in_flight(sequences=2)
    for at in (1.0, 1.25, 1.5):
        told.on_message(one, at)
        told.on_message(two, at)
    seen = samples(told.metrics)
    assert (seen[f"{BETWEEN}_count"], seen[f"{BETWEEN}_sum"]) == (2, 0.5)
    assert seen[f"{FIRST}_count"] == 2


def test_a_request_lasts_from_its_arrival_to_its_end() -> None:
    told = Fixture()
    sent = in_flight(queue_s=1.5, sent_at=2.0)
    told.clock.advance(5.0)
    told.metrics.on_end(sent, StatusCode.OK)
    seen = samples(told.metrics)
    assert seen["dynamo_router_request_duration_seconds_sum"] == 5.0
    assert seen["dynamo_router_queue_wait_seconds_sum"] == 1.5
    counts = told.workers.counts(1)
    assert counts is not None
    assert (counts.requests, counts.served, counts.served_s) == (1, 1, 3.0)


def test_who_waited_in_vain_has_waited() -> None:
    told = Fixture()
    refused = in_flight()
    refused.attempt = None
    told.clock.advance(7.0)
    told.metrics.on_end(refused, StatusCode.RESOURCE_EXHAUSTED)
    seen = samples(told.metrics)
    assert seen["dynamo_router_queue_wait_seconds_sum"] == 7.0
    assert seen["dynamo_router_request_duration_seconds_count"] == 0


@pytest.mark.parametrize("served", [True, False])
def test_each_worker_that_was_tried_is_counted(served: bool) -> None:
    told = Fixture()
    told.registry.add(2)
    failures = FailedAttempts(3)
    tried = in_flight(failures=failures)
    lost = judge(Origin.CONNECT, StatusCode.UNAVAILABLE, started=False)
    failures.add(FailedAttempt(2, Origin.CONNECT, lost, ""))
    if not served:
        failures.add(FailedAttempt(1, Origin.CONNECT, lost, ""))
    code = StatusCode.OK if served else StatusCode.UNAVAILABLE
    told.metrics.on_end(tried, code)
    counts = {worker: told.workers.counts(worker) for worker in (1, 2)}
    assert {w: (c.requests, c.served) for w, c in counts.items() if c is not None} == {
        1: (1, int(served)),
        2: (1, 0),
    }


def test_what_is_counted_of_a_worker_goes_with_it() -> None:
    told = Fixture()
    told.registry.add(1, dp_size=2)
    told.metrics.on_end(in_flight(), StatusCode.OK)
    told.registry.add(1)  # one of its ranks goes, it stays
    counts = told.workers.counts(1)
    assert counts is not None and counts.requests == 1
    told.registry.remove(1)
    told.metrics.on_end(in_flight(), StatusCode.OK)  # of a request that was there
    assert told.workers.counts(1) is None
    told.registry.add(1)
    counts = told.workers.counts(1)
    assert counts is not None and counts.requests == 0


@pytest.mark.parametrize(
    ("first_at", "last_at", "outcome"),
    [(0.1, 0.2, "good"), (0.3, 0.4, "ttft"), (0.1, 0.9, "itl"), (0.3, 2.0, "both")],
)
def test_answers_are_counted_by_their_objectives(
    first_at: float, last_at: float, outcome: str
) -> None:
    fixture = Fixture()
    made = in_flight(*[b""] * 11, objectives=Objectives(ttft_ms=200.0, itl_ms=20.0))
    made.first_message_at, made.last_message_at = first_at, last_at
    fixture.metrics.on_end(made, StatusCode.OK)
    told = samples(fixture.metrics)
    assert {name: told[f"dynamo_router_objectives_total{name}"] for name in OUTCOMES} == {
        name: float(name == outcome) for name in OUTCOMES
    }


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        (StatusCode.UNAVAILABLE, 1),
        (StatusCode.RESOURCE_EXHAUSTED, 1),
        (StatusCode.CANCELLED, 0),
        (StatusCode.INVALID_ARGUMENT, 0),
    ],
)
def test_a_request_without_an_answer_misses_its_objectives_unless_that_is_its_clients_doing(
    code: StatusCode, failed: int
) -> None:
    metrics = Fixture().metrics
    metrics.on_end(in_flight(), code)
    metrics.on_end(in_flight(b"", streaming=False), StatusCode.OK)
    told = samples(metrics)
    counts = [told[f"dynamo_router_objectives_total{name}"] for name in OUTCOMES]
    assert counts == [0, 0, 0, 0, failed]


def test_the_history_reads_the_same_counts() -> None:
    fixture = Fixture()
    request = in_flight()
    fixture.on_message(request, 0.2, complete(prompt(), 1, 2, 3).SerializeToString())
    fixture.metrics.on_end(request, StatusCode.OK)
    for code in (
        StatusCode.INVALID_ARGUMENT,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.UNAVAILABLE,
        StatusCode.UNIMPLEMENTED,
        StatusCode.INTERNAL,
        StatusCode.CANCELLED,
    ):
        fixture.metrics.on_end(None, code)
    counts = fixture.metrics.counts(block_size=16)
    found = dict(zip(REQUEST_COUNTS, counts, strict=False))
    assert (found["ok"], found["4xx"], found["5xx"], found["left"]) == (1, 2, 3, 1)
    assert (found["prompt_tokens"], found["output_tokens"]) == (64, 3)
    ttft = counts[len(REQUEST_COUNTS) : len(REQUEST_COUNTS) + BUCKETS]
    assert sum(ttft) == 1 and len(counts) == len(REQUEST_COUNTS) + 2 * BUCKETS
    ended = samples_of(fixture, "dynamo_component_router_requests_total")
    assert sum(ended.values()) == 7 == sum(counts[:4])


def samples_of(fixture: Fixture, name: str) -> dict[str, float]:
    return {
        str(sample.labels): sample.value
        for family in fixture.metrics.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_gaps_between_messages_count_as_messages_do_and_do_not_pile_up() -> None:
    made, request = Fixture(), in_flight(b"1")
    gaps_s = made.metrics.gaps_s
    assert gaps_s is not None
    gaps_s += [0.01] * (MOST_GAPS - 1)
    made.on_message(request, 0.5)
    assert gaps_s == []
    gaps_s += [0.01] * MOST_GAPS
    made.metrics.on_end(request, StatusCode.OK)
    assert gaps_s == [] and gaps_s is made.metrics.gaps_s
    name = "dynamo_component_router_inter_token_latency_seconds_count"
    assert samples(made.metrics)[name] == 2 * MOST_GAPS
