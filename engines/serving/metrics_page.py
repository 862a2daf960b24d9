"""MetricsPage: what an engine's process counts, over HTTP at /metrics."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...base.urls import joined
from ...runtime.request_planes import RequestServer
from ...transport.http1 import Application, HttpCall, HttpListener, answer_whole, plain_error

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Listens from `start` to `close`."""

    def __init__(self, text: Callable[[], bytes]) -> None:
        """`text`: in Prometheus' text format."""
        self._text = text
        self.address = ""
        routes = {"GET /metrics": self._on_metrics}
        self._listener = HttpListener(Application(routes, plain_error, max_body_bytes=0))

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. ConfigError if it cannot be had."""
        taken = await self._listener.start(host, port, key="metrics_port")
        self.address = joined(host, taken)

    async def close(self) -> None:
        """Idempotent."""
        await self._listener.close()

    async def _on_metrics(self, call: HttpCall) -> None:
        await answer_whole(call, self._text(), {"content-type": _TYPE})


class _RequestPlane(Collector):
    def __init__(self, server: RequestServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        name = "dynamo_router_request_plane_"
        yield GaugeMetricFamily(
            f"{name}requests",
            "Requests in progress over Dynamo's TCP request plane.",
            self._server.in_flight,
        )
        yield CounterMetricFamily(
            f"{name}unread_callers_total",
            "Connections closed because the caller left 1 MiB of acknowledgements unread.",
            self._server.unread_callers,
        )


def request_plane_metrics(server: RequestServer, registry: CollectorRegistry) -> None:
    """Add what a server of Dynamo's request plane counts to a registry."""
    registry.register(_RequestPlane(server))
