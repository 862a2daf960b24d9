"""Where spans go: batches, made and sent by threads of OpenTelemetry's SDK."""

import asyncio
import threading
from collections.abc import Mapping
from time import monotonic

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from .request_spans import RequestSpans

CLOSE_TIMEOUT_S = 3.0
"""How long the last spans may take to be sent."""


class SpanExport:
    """A tracer provider of our own, from its making until `close`.

    Sampling, headers, certificates, batches and their bounds are what the OTEL_* variables say.
    Spans that find no room because the collector is slow or away are dropped by the SDK.
    """

    def __init__(self, endpoint: str | None, environment: Mapping[str, str]) -> None:
        insecure = None if endpoint is None else not endpoint.startswith("https://")
        self._exporter = OTLPSpanExporter(endpoint=endpoint, insecure=insecure)
        named = environment.get("OTEL_SERVICE_NAME") or (
            "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        )
        ours = {} if named else {SERVICE_NAME: "dynamo-router"}
        self._provider = TracerProvider(resource=Resource.create(ours), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self.tracing = RequestSpans(self._provider)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what is there, as long as that may take, and end the threads."""
        # A thread of its own, which the end of the process does not wait for.
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        end = monotonic() + timeout_s
        while ending.is_alive() and monotonic() < end:
            await asyncio.sleep(0.005)
        if ending.is_alive():
            self._exporter.shutdown()  # gives up what is under way
