"""Metrics: an observer of requests, and what the rest tells when Prometheus asks.

Names are Dynamo's where Dynamo has the same number. What happens per request or message is
counted in plain integers here; families and labels are made at the scrape.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import grpc
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..workers.trtllm_proto import pb
from .flight import Flight
from .status import status_of

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_MILLISECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_TOKENS = tuple(2**n for n in range(4, 21))
_RATIO = tuple(n / 10 for n in range(1, 11))


class Histogram:
    """Counts by bucket. A fraction of the cost of prometheus_client's, which locks; this one lives
    on the event loop.
    """

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name, self._help, self._bounds = name, help, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self) -> HistogramMetricFamily:
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        return HistogramMetricFamily(self._name, self._help, buckets, self._sum)


class RequestMetrics(Collector):
    """What happens to requests: a DispatchObserver."""

    def __init__(self) -> None:
        self.started = 0
        self.ended: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self._in_flight = 0
        self._disconnects = 0
        self._ttft = Histogram(
            "dynamo_component_router_time_to_first_token_seconds",
            "From a request's arrival to its first message.",
            _SECONDS,
        )
        self._itl = Histogram(
            "dynamo_component_router_inter_token_latency_seconds",
            "Between two messages of a stream.",
            _SECONDS,
        )
        self._input = Histogram(
            "dynamo_component_router_input_sequence_tokens", "Prompt length.", _TOKENS
        )
        self._output = Histogram(
            "dynamo_component_router_output_sequence_tokens",
            "Tokens generated for an answer, as its worker counts them.",
            _TOKENS,
        )
        self._cached = Histogram(
            "dynamo_router_cached_tokens",
            "Prompt tokens that needed no prefill, as the worker counts them.",
            _TOKENS,
        )
        self._hit_rate = Histogram(
            "dynamo_component_router_kv_hit_rate",
            "Share of a prompt's blocks that the chosen worker was expected to hold.",
            _RATIO,
        )
        self._overhead = Histogram(
            "dynamo_router_overhead_total_ms",
            "Time of a decision, from tokens to a booked slot.",
            _MILLISECONDS,
        )

    # What the dispatcher tells

    def on_arrival(self) -> None:
        self.started += 1
        self._in_flight += 1

    def on_routed(self, flight: Flight) -> None:
        decision = flight.decision
        assert decision is not None
        self._input.observe(len(flight.facts.token_ids))
        self._hit_rate.observe(decision.overlap_blocks / decision.request_blocks)
        self._overhead.observe(flight.decision_s * 1e3)

    def on_message(self, flight: Flight, message: bytes, now: float) -> None:
        if flight.messages:
            self._itl.observe(now - flight.last_message_at)
        else:
            self._ttft.observe(now - flight.arrived)
        if flight.facts.sequences > 1:  # each of them has a last message of its own
            self._read_usage(message)

    def on_retry(self, flight: Flight, error: BaseException) -> None:
        self.retries[status_of(error)[0].name] += 1

    def on_end(self, flight: Flight | None, code: grpc.StatusCode) -> None:
        self._in_flight -= 1
        self.ended[code.name] += 1
        if flight is not None and flight.facts.sequences == 1:
            self._read_usage(flight.last_message)

    # What Prometheus is told

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            "dynamo_component_router_requests_started", "Requests that arrived.", self.started
        )
        ended = CounterMetricFamily(
            "dynamo_component_router_requests", "Requests that ended.", labels=["status"]
        )
        for code, count in self.ended.items():
            ended.add_metric([code.lower()], count)
        yield ended
        yield GaugeMetricFamily(
            "dynamo_component_inflight_requests", "Requests in flight.", self._in_flight
        )
        retries = CounterMetricFamily(
            "dynamo_router_retries", "Attempts after the first one.", labels=["reason"]
        )
        for code, count in self.retries.items():
            retries.add_metric([code.lower()], count)
        yield retries
        for histogram in (
            self._ttft,
            self._itl,
            self._input,
            self._output,
            self._cached,
            self._hit_rate,
            self._overhead,
        ):
            yield histogram.family()

    def _read_usage(self, message: bytes) -> None:
        try:
            response = pb.GenerateResponse.FromString(message)
        except DecodeError:  # the engine's affair and its client's; not ours to judge
            return
        if response.HasField("complete"):
            self._output.observe(response.complete.completion_tokens)
            self._cached.observe(response.complete.cached_tokens)


class Gauges(Collector):
    """What others know, asked for at the scrape: each source yields its families."""

    def __init__(self, *sources: Callable[[], Iterable[Metric]]) -> None:
        self._sources = list(sources)

    def add(self, source: Callable[[], Iterable[Metric]]) -> None:
        self._sources.append(source)

    def collect(self) -> Iterable[Metric]:
        for source in self._sources:
            yield from source()


def registry_of(*collectors: Collector) -> CollectorRegistry:
    """A registry of our own, so that two routers in one process do not meet."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return registry
