"""MetricsPage: what an engine's process counts, over HTTP at /metrics."""

from collections.abc import Callable

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
        self.address = f"{host}:{taken}"

    async def close(self) -> None:
        """Idempotent."""
        await self._listener.close()

    async def _on_metrics(self, call: HttpCall) -> None:
        await answer_whole(call, self._text(), {"content-type": _TYPE})
