"""Metrics: an observer of requests, and what the rest tells when Prometheus asks.

Names are Dynamo's where Dynamo has the same number. What happens per request or message is
counted in plain integers here; families and labels are made at the scrape.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import add

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ...workers.trtllm_proto import pb
from ..dispatch import Flight, status_of

FOLD_AT = 1024
"""How many observations may wait to be sorted into buckets."""
KEPT_MESSAGES = 64
"""How many last messages may wait to be read."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_MILLISECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_TOKENS = tuple(2**n for n in range(4, 21))
_RATIO = tuple(n / 10 for n in range(1, 11))


class Histogram:
    """Counts by bucket, on the event loop.

    Observing is an append; sorting into buckets waits until there are many or somebody asks. A
    request spends its time in gRPC, so whatever runs once for it runs with cold caches, and a
    loop over a thousand values costs less than a thousand times that.
    """

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name, self._help, self._bounds = name, help, bounds
        self._counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._new: list[float] = []

    def observe(self, value: float) -> None:
        self._new.append(value)
        if len(self._new) >= FOLD_AT:
            self._fold()

    def family(self) -> HistogramMetricFamily:
        self._fold()
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        buckets = list(zip(names, self._counts.cumsum().tolist(), strict=True))
        return HistogramMetricFamily(self._name, self._help, buckets, self._sum)

    def _fold(self) -> None:
        values = np.array(self._new, dtype=np.float64)
        self._new.clear()
        found = np.searchsorted(self._bounds, values)  # a bound belongs to the bucket below it
        self._counts += np.bincount(found, minlength=len(self._counts))
        self._sum += float(values.sum())


class RequestMetrics(Collector):
    """What happens to requests: a DispatchObserver. `in_flight` tells how many there are now."""

    def __init__(self, in_flight: Callable[[], int]) -> None:
        self._in_flight = in_flight
        self._ended: Counter[grpc.StatusCode] = Counter()
        self._retries: Counter[grpc.StatusCode] = Counter()
        self._overlap_blocks = [0, 0, 0]  # on devices, in host memory, on disk
        self._last_messages: list[bytes] = []
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

    def on_message(self, flight: Flight, message: bytes, now: float) -> None:
        if flight.messages:
            self._itl.observe(now - flight.last_message_at)
        else:
            self._ttft.observe(now - flight.arrived)
        if flight.facts.sequences > 1:  # each of them has a last message of its own
            self._keep(message)

    def on_retry(self, flight: Flight, error: BaseException) -> None:
        self._retries[status_of(error)[0]] += 1

    def on_end(self, flight: Flight | None, code: grpc.StatusCode) -> None:
        self._ended[code] += 1
        if flight is None or flight.decision is None:
            return
        decision = flight.decision
        self._input.observe(flight.facts.prompt.isl)
        device, host, disk = tiers = (
            decision.overlap_blocks,
            decision.host_overlap_blocks,
            decision.disk_overlap_blocks,
        )
        self._overlap_blocks = list(map(add, self._overlap_blocks, tiers))
        self._hit_rate.observe((device + host + disk) / decision.request_blocks)
        self._overhead.observe(flight.decision_s * 1e3)
        if flight.messages and flight.facts.sequences == 1:
            self._keep(flight.last_message)

    def on_refused(self) -> None:
        """A request found no room, before anybody looked at it."""
        self._ended[grpc.StatusCode.RESOURCE_EXHAUSTED] += 1

    # What Prometheus is told

    def collect(self) -> Iterable[Metric]:
        self._read_usage()
        yield CounterMetricFamily(
            "dynamo_component_router_requests_started",
            "Requests that arrived.",
            self._ended.total() + self._in_flight(),
        )
        yield _by_code("dynamo_component_router_requests", "Requests that ended.", self._ended)
        yield _by_code("dynamo_router_retries", "Attempts after the first one.", self._retries)
        overlaps = CounterMetricFamily(
            "dynamo_router_overlap_blocks",
            "Blocks of prompts that the chosen worker was expected to hold.",
            labels=["tier"],
        )
        for tier, blocks in zip(
            ("device", "host_pinned", "disk"), self._overlap_blocks, strict=True
        ):
            overlaps.add_metric([tier], blocks)
        yield overlaps
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

    def _keep(self, message: bytes) -> None:
        self._last_messages.append(message)
        if len(self._last_messages) >= KEPT_MESSAGES:
            self._read_usage()

    def _read_usage(self) -> None:
        """Read what workers say at the end of an answer."""
        messages, self._last_messages = self._last_messages, []
        for message in messages:
            try:
                response = pb.GenerateResponse.FromString(message)
            except DecodeError:  # an affair of the engine and its client
                continue
            if response.HasField("complete"):
                self._output.observe(response.complete.completion_tokens)
                self._cached.observe(response.complete.cached_tokens)


def _by_code(name: str, help: str, counts: Counter[grpc.StatusCode]) -> Metric:
    family = CounterMetricFamily(name, help, labels=["status"])
    for code, count in counts.items():
        family.add_metric([code.name.lower()], count)
    return family


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
