"""OpenTelemetry: spans of requests, exported over OTLP. Entered by `serve`.

Needs the packages of the extra `otel`, and imports them only where spans are asked for.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import structlog

from ...process.settings import bad_setting

if TYPE_CHECKING:
    from .span_export import SpanExport

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")

log = structlog.get_logger(__name__)


def span_export_of(
    endpoint: str | None, environment: Mapping[str, str] = os.environ
) -> "SpanExport | None":
    """What exports spans to a collector: to `endpoint`, else where the standard OTEL_* variables
    say; None if neither names one, or they switch it off.

    ConfigError if an endpoint is given and the packages are not installed; a variable alone, which
    may be meant for others, is named in the log.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if endpoint is None:
        if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
            return None
        if not any(environment.get(name) for name in ENDPOINTS):
            return None
    if not _installed():
        missing = "no spans without the packages of the extra: pip install 'dynamo-router[otel]'"
        if endpoint is None:
            log.warning(missing)
            return None
        raise bad_setting("otel_endpoint", missing)
    from .span_export import SpanExport

    return SpanExport(endpoint, environment)


def _installed() -> bool:
    try:
        return all(find_spec(package) is not None for package in _PACKAGES)
    except ModuleNotFoundError:  # of a parent
        return False
