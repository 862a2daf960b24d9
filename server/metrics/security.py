"""What Prometheus hears of refused callers, and of files that are read again."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ..access import Security


def security_metrics(security: Security) -> Callable[[], Iterable[Metric]]:
    """Refused calls by reason, the certificate's end, and files read again or found no good."""

    def collect() -> Iterable[Metric]:
        refused = CounterMetricFamily(
            "dynamo_router_access_refused", "Calls refused by access control.", labels=["reason"]
        )
        for reason, count in sorted(security.access.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        reloads = CounterMetricFamily(
            "dynamo_router_secret_reloads",
            "Reloads of secret files.",
            labels=["file"],
        )
        failures = CounterMetricFamily(
            "dynamo_router_secret_reload_failures",
            "Reloads of secret files that failed; the old ones stay in use.",
            labels=["file"],
        )
        for files in security.watch.files:
            reloads.add_metric([files.what], files.reloads)
            failures.add_metric([files.what], files.failures)
        yield reloads
        yield failures
        if security.server_tls is not None:
            yield GaugeMetricFamily(
                "dynamo_router_tls_certificate_expires_seconds",
                "Expiry of the listeners' certificate, in Unix time.",
                security.server_tls.not_after,
            )

    return collect
