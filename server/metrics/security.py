"""What Prometheus hears of refused callers, and of files that are read again."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ..access import Security
from .families import counter_by, gauges, source


@source
def security_metrics(security: Security) -> Iterator[Metric]:
    """Refused calls by reason, the certificate's end, and files read again or found no good."""
    yield counter_by(
        "reason",
        "dynamo_router_access_refused",
        "Calls refused for who made them.",
        dict(sorted(security.access.refused.items())),
    )
    files = security.watch.files
    yield counter_by(
        "file",
        "dynamo_router_secret_reloads",
        "Times that secret files were read again.",
        {each.what: each.reloads for each in files},
    )
    yield counter_by(
        "file",
        "dynamo_router_secret_reload_failures",
        "Times that new secret files were no good, and the old ones stayed.",
        {each.what: each.failures for each in files},
    )
    if security.server_tls is not None:
        yield from gauges(
            "dynamo_router_tls_certificate_",
            ("expires_seconds", "When the certificate of our listeners ends, in Unix time.",
             security.server_tls.not_after),
        )  # fmt: skip
