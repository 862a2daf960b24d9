"""Metrics of requests on two workers: decisions, hand-offs, failures, and how good forecasts
were."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from ...router.disagg import REASONS
from ...router.pairs import PairDecision
from ..handoff import Handoffs
from .families import counter_by, gauges
from .histogram import SECONDS, Histogram
from .page import Source

REGRET = (-5, -1, -0.5, -0.1, -0.05, -0.01, 0, 0.01, 0.05, 0.1, 0.5, 1, 5)
"""Seconds, also below 0: sooner than was forecast."""


def handoff_metrics(handoffs: Handoffs) -> Source:
    """Of one pool."""
    rule, outcomes = handoffs.rule, handoffs.outcomes
    took = Histogram(
        "dynamo_router_disagg_handoff_seconds",
        "From the end of a prefill to the first token of the decode worker.",
        SECONDS,
    )
    regret = Histogram(
        "dynamo_router_disagg_regret_seconds",
        "How much later than forecast a first token came; negative where sooner.",
        REGRET,
    )
    local = Histogram(
        "dynamo_router_disagg_local_forecast_seconds",
        "Forecast of prompts computed by the worker that decodes, where both ways were compared.",
        SECONDS,
    )
    remote = Histogram(
        "dynamo_router_disagg_remote_forecast_seconds",
        "Forecast of prompts computed by a prefill worker, where both ways were compared.",
        SECONDS,
    )

    def on_pair(request_id: str, pair: PairDecision) -> None:
        if pair.local_s is not None and pair.remote_s is not None:
            local.observe(pair.local_s)
            remote.observe(pair.remote_s)

    outcomes.on_handoff_s.append(took.observe)
    outcomes.on_pair.append(on_pair)
    outcomes.on_regret_s.append(lambda request_id, seconds: regret.observe(seconds))

    def collect() -> Iterator[Metric]:
        decisions = CounterMetricFamily(
            "dynamo_router_disagg_decisions",
            "Prompts by who computes them, a prefill worker (remote) or the worker that decodes"
            " (local), and why.",
            labels=["prefill", "reason"],
        )
        for where, reasons in REASONS.items():
            for reason in reasons:
                decisions.add_metric([where, reason], rule.decisions[f"{where}_{reason}"])
        yield decisions
        yield counter_by(
            "phase",
            "dynamo_router_disagg_failures",
            "Attempts on two workers that failed before the first token, by phase.",
            outcomes.failures,
        )
        yield took.family()
        yield regret.family()
        yield local.family()
        yield remote.family()
        queued = outcomes.queued.values()
        oldest_s = max((outcomes.now() - since for _, since in queued), default=0.0)
        yield from gauges(
            "dynamo_router_disagg_",
            (
                "waiting_requests",
                "Requests that wait until a decode worker has capacity for their prompts.",
                handoffs.waiting,
            ),
            (
                "queued_requests",
                "Requests whose prompts this router had put into the prefill queue, without a token"
                " yet.",
                len(queued),
            ),
            (
                "queued_tokens",
                "Prompt tokens of these that their decode workers are expected not to have.",
                sum(tokens for tokens, _ in queued),
            ),
            (
                "queued_oldest_seconds",
                "Time since the oldest of these was sent.",
                oldest_s,
            ),
        )

    return collect
