"""Metrics: an observer of requests, and the families of requests and answers.

Names are Dynamo's where Dynamo has the same number. What happens per request or message is
counted in plain integers here; families and labels are made at the scrape.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

import structlog
from prometheus_client.metrics_core import Metric

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...indexer.wire import TIERS
from ...router.admission import Objectives
from ...router.policy import Decision
from ..dispatch import HTTP_STATUSES, Attempt, OtherCall, Request, status_of, usage_of
from .families import counter_by, counters
from .histogram import (
    FOLD_AT,
    LONG_SECONDS,
    RATIO,
    SECONDS,
    SHORT_SECONDS,
    TOKENS,
    Histogram,
    HistogramRow,
)
from .http_answers import answer_class
from .worker_requests import WorkerRequests

log = structlog.get_logger(__name__)

REQUEST_COUNTS = (
    "ok", "4xx", "5xx", "left",  # requests that ended, by the HTTP status that theirs stands for
    "prompt_tokens", "cached_tokens", "output_tokens",
)  # fmt: skip
BUCKETS = len(SECONDS) + 1
"""Of the histograms of TTFT and ITL."""
OUTCOMES = ("good", "ttft", "itl", "both", "failed")
"""Of requests with objectives: kept, or which of them were missed, or it had no answer."""
KEPT_MESSAGES = 64
"""How many last messages, and requests that have ended, may wait to be read."""
_OK = StatusCode.OK
_Ended: TypeAlias = tuple[
    Decision, float, float, int, float, bytes | None, Objectives | None, float, float, int
]
"""What is kept of a request until it is counted: see `on_end`."""


class RequestMetrics:
    """What happens to requests: a DispatchObserver. `in_flight` counts those that there are now,
    `workers` gets what concerns one of them.
    """

    def __init__(self, in_flight: Callable[[], int], clock: Clock, workers: WorkerRequests) -> None:
        self._in_flight = in_flight
        self._now = clock.now
        self._workers = workers
        self._well = 0  # requests that ended so
        self._ended: Counter[StatusCode] = Counter()  # the others
        self._retries: Counter[StatusCode] = Counter()
        self._objectives: Counter[str] = Counter()
        self._overlap_blocks = [0, 0, 0]  # on devices, in host memory, on disk
        self._last_messages: list[bytes] = []
        self._new: list[_Ended] = []  # what was sent to a worker and is not counted yet
        self._ttft = Histogram(
            "dynamo_component_router_time_to_first_token_seconds",
            "From a streaming request's arrival to its first message.",
            SECONDS,
        )
        self._itl = Histogram(
            "dynamo_component_router_inter_token_latency_seconds",
            "Between two messages of a stream, where one answer was asked for.",
            SECONDS,
        )
        self.gaps_s: list[float] | None = self._itl.new
        self._duration = Histogram(
            "dynamo_router_request_duration_seconds",
            "From a request's arrival to its end, of those that were sent to a worker.",
            LONG_SECONDS,
        )
        self._queue_wait = Histogram(
            "dynamo_router_queue_wait_seconds",
            "From a request's arrival to the first choice of a worker, or to its refusal.",
            LONG_SECONDS,
        )
        self._input = Histogram(
            "dynamo_component_router_input_sequence_tokens", "Prompt length.", TOKENS
        )
        self._output = Histogram(
            "dynamo_component_router_output_sequence_tokens",
            "Tokens generated for an answer, as its worker counts them.",
            TOKENS,
        )
        self._cached = Histogram(
            "dynamo_router_cached_tokens",
            "Prompt tokens that needed no prefill, as the worker counts them.",
            TOKENS,
        )
        self._hit_rate = Histogram(
            "dynamo_component_router_kv_hit_rate",
            "Share of a prompt's blocks that the chosen worker was expected to hold.",
            RATIO,
        )
        self._overhead = Histogram(
            "dynamo_router_overhead_seconds",
            "Time of a decision, from token ids to a booked slot.",
            SHORT_SECONDS,
        )
        self._of_decided = HistogramRow(
            self._queue_wait, self._duration, self._input, self._hit_rate, self._overhead
        )

    # Events of the dispatcher

    def on_message(
        self, request: Request, attempt: Attempt, message: bytes, generated: int, now: float
    ) -> None:
        sequences = request.facts.sequences
        if sequences > 1:
            # Messages of several answers are mixed, and each has a last message of its own.
            self._keep(message)
        if request.first_message_at is not None:
            if sequences == 1:
                self._itl.observe(now - request.last_message_at)
        elif request.facts.streaming:
            self._ttft.observe(now - request.arrived)
            self._workers.on_first_message(attempt.worker_id, now - attempt.sent_at)

    def on_retry(self, request: Request, error: BaseException) -> None:
        self._retries[status_of(error)[0]] += 1

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None:
        if code is _OK:
            self._well += 1
        else:
            self._ended[code] += 1
        if request is None:
            return
        now, attempt = self._now(), request.attempt
        if len(self._itl.new) >= FOLD_AT:
            self._itl.fold()
        facts, arrived, first = request.facts, request.arrived, request.first_message_at
        objectives = None
        if facts.streaming and facts.sequences == 1:
            if code is _OK:
                objectives = request.placement.objectives
            elif code not in (StatusCode.CANCELLED, StatusCode.INVALID_ARGUMENT):
                self._objectives["failed"] += 1
        if attempt is None:
            self._queue_wait.observe(now - arrived)
            if objectives is not None:
                self._count_objectives(objectives, 0.0, 0.0)
            return
        self._workers.on_end(request, attempt, code is _OK, now)
        began, stream = arrived if first is None else first, request.stream
        self._new.append(
            (
                attempt.decision,
                attempt.queue_s,
                now - arrived,
                facts.prompt.isl,
                attempt.decision_s,
                None if first is None or facts.sequences > 1 else request.last_message,
                objectives,
                began - arrived,
                request.last_message_at - began,
                attempt.messages if stream is None else stream.messages,
            )
        )
        if len(self._new) >= KEPT_MESSAGES:
            self._count_new()

    def _count_objectives(self, objectives: Objectives, ttft_s: float, itl_s: float) -> None:
        self._objectives[objectives.missed(ttft_s, itl_s) or "good"] += 1

    def _count_new(self) -> None:
        """Count requests that have ended: many together, as code that runs once for each finds
        the processor's caches cold. A message counts as a token."""
        ended, self._new = self._new, []
        device = host = disk = 0
        failure: Exception | None = None
        for (
            decision, queue_s, took_s, isl, decision_s, last_message,
            objectives, ttft_s, stream_s, messages,
        ) in ended:  # fmt: skip
            try:
                overlap = (
                    decision.overlap_blocks
                    + decision.host_overlap_blocks
                    + decision.disk_overlap_blocks
                )
                share = overlap / decision.request_blocks
                device += decision.overlap_blocks
                host += decision.host_overlap_blocks
                disk += decision.disk_overlap_blocks
                self._of_decided.observe(queue_s, took_s, isl, share, decision_s)
                if last_message is not None:
                    self._last_messages.append(last_message)
                if objectives is not None:
                    self._count_objectives(objectives, ttft_s, stream_s / max(1, messages - 1))
            except Exception as error:  # of this one alone: the others are counted
                failure = error
        for tier, blocks in enumerate((device, host, disk)):
            self._overlap_blocks[tier] += blocks
        if failure is not None:
            log.error("a request was not counted", exc_info=failure)
        self._read_usage()

    def on_refused(self) -> None:
        """A request found no room, before it was read."""
        self._ended[StatusCode.RESOURCE_EXHAUSTED] += 1

    @property
    def started(self) -> int:
        """Requests that arrived, ever."""
        return self._well + self._ended.total() + self._in_flight()

    def counts(self, block_size: int) -> list[int]:
        """What has been counted, in the order of REQUEST_COUNTS; then by bucket of TTFT and ITL."""
        self._count_new()
        self._of_decided.fold()
        classes = [0, 0, 0]
        for code, count in self._ended.items():
            classes[answer_class(HTTP_STATUSES.get(code, 500)) - 1] += count
        expected = sum(self._overlap_blocks) * block_size
        tokens = [round(self._input.sum), expected, round(self._output.sum)]
        return [self._well, *classes, *tokens, *self._ttft.counts, *self._itl.counts]

    # What a scrape reads

    def collect(self) -> Iterable[Metric]:
        self._count_new()
        self._of_decided.fold()
        yield from counters(
            "dynamo_component_router_", ("requests_started", "Requests that arrived.", self.started)
        )
        yield counter_by(
            "status",
            "dynamo_component_router_requests",
            "Requests that ended.",
            {"ok": self._well, **_failed(self._ended)},
        )
        yield counter_by(
            "status",
            "dynamo_router_retries",
            "Attempts after the first one.",
            _failed(self._retries),
        )
        yield counter_by(
            "outcome",
            "dynamo_router_objectives",
            "Streaming requests for one answer that ended, by their objectives: good, "
            "missed (ttft, itl, both), or failed. Without those that their client gave up.",
            {outcome: self._objectives[outcome] for outcome in OUTCOMES},
        )
        yield counter_by(
            "tier",
            "dynamo_router_overlap_blocks",
            "Blocks of prompts that the chosen worker was expected to hold.",
            dict(zip(TIERS[:3], self._overlap_blocks, strict=True)),
        )
        for histogram in (
            self._ttft,
            self._itl,
            self._duration,
            self._queue_wait,
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
        failure: Exception | None = None
        for message in messages:
            try:
                usage = usage_of(message)
                if usage is not None:
                    self._output.observe(usage.completion_tokens)
                    self._cached.observe(usage.cached_tokens)
            except Exception as error:  # of this one alone
                failure = error
        if failure is not None:
            log.error("the tokens of an answer were not counted", exc_info=failure)


def _failed(counts: Counter[StatusCode]) -> dict[str, int]:
    """Counts by status, but OK."""
    return {code.name.lower(): counts[code] for code in StatusCode if code is not _OK}
