"""What Prometheus sees of a policy that foresees: whether it is right, and whether it decides."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ...router.kv_router import KvRouter
from .families import counters, gauge_by, gauges, source


@source
def forecast_metrics(router: KvRouter) -> Iterator[Metric]:
    """Nothing where the policy foresees nothing."""
    state = router.residuals
    if state is None:
        return
    yield from gauges(
        "dynamo_router_forecast_",
        ("trusted", "Whether the forecast decides; 0: its fallback does.", state.trusted),
        ("failing_workers", "Workers whose own predictions fail.", state.failing_workers),
    )
    yield from counters(
        "dynamo_router_forecast_",
        ("fallbacks", "Times that predictions failed, so that the fallback decided.",
         state.fallbacks),
    )  # fmt: skip
    yield gauge_by(
        "kind",
        "dynamo_router_forecast_scatter",
        "Logarithm of how much half of the predictions are off by, or more.",
        {"ttft": state.ttft_scatter, "itl": state.itl_scatter},
    )
    failed = GaugeMetricFamily(
        "dynamo_router_forecast_failed_seconds",
        "A prediction of those that failed last: what was foreseen, and what was seen.",
        labels=["kind", "value"],
    )
    if state.failed is not None:
        failed.add_metric([state.failed.kind, "foreseen"], state.failed.foreseen_s)
        failed.add_metric([state.failed.kind, "seen"], state.failed.took_s)
    yield failed
