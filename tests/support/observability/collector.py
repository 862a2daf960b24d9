"""An OpenTelemetry collector that keeps what it is sent."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import grpc
from grpc import aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp


class Collector:
    """An OpenTelemetry collector, as far as traces over OTLP/gRPC go."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()
        self.services: set[str] = set()

    async def export(self, request: Any, context: Any) -> Any:
        self.asked += 1
        await self.go.wait()
        for resource in request.resource_spans:
            named = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return otlp.ExportTraceServiceResponse()


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[Collector, str]]:
    """A collector and its address. Who starts meanwhile sends batches soon, not after 5 s."""
    collector = Collector()
    server = aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        collector.export,
        otlp.ExportTraceServiceRequest.FromString,
        otlp.ExportTraceServiceResponse.SerializeToString,
    )
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Export": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with patch.dict(os.environ, OTEL_BSP_SCHEDULE_DELAY="100"):
            yield collector, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)
