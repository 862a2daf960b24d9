"""What Prometheus sees of a policy that foresees: whether it is right, and whether it decides."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ...router.kv_router import KvRouter


def forecast_metrics(router: KvRouter) -> Callable[[], Iterable[Metric]]:
    """Nothing where the policy foresees nothing."""

    def collect() -> Iterable[Metric]:
        state = router.residuals
        if state is None:
            return ()
        scatter = GaugeMetricFamily(
            "dynamo_router_forecast_scatter",
            "Logarithm of how much half of the predictions are off by, or more.",
            labels=["kind"],
        )
        scatter.add_metric(["ttft"], state.ttft_scatter)
        scatter.add_metric(["itl"], state.itl_scatter)
        failed = GaugeMetricFamily(
            "dynamo_router_forecast_failed_seconds",
            "A prediction of those that failed last: what was foreseen, and what was seen.",
            labels=["kind", "value"],
        )
        if state.failed is not None:
            failed.add_metric([state.failed.kind, "foreseen"], state.failed.foreseen_s)
            failed.add_metric([state.failed.kind, "seen"], state.failed.took_s)
        return (
            GaugeMetricFamily(
                "dynamo_router_forecast_trusted",
                "Whether the forecast decides; 0: its fallback does.",
                float(state.trusted),
            ),
            CounterMetricFamily(
                "dynamo_router_forecast_fallbacks",
                "Times that predictions failed, so that the fallback decided.",
                state.fallbacks,
            ),
            GaugeMetricFamily(
                "dynamo_router_forecast_failing_workers",
                "Workers whose own predictions fail.",
                state.failing_workers,
            ),
            scatter,
            failed,
        )

    return collect
