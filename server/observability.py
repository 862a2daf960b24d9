"""How the router is observed: log, access log, metrics, spans."""

from dataclasses import dataclass
from typing import ClassVar

from ..process.logs import LOG_FORMATS, LogFormat, LogOutput, log_to_stderr
from ..process.setting_checks import require_at_least, require_positive
from ..process.settings import bad_setting, option

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class ObservabilityConfig:
    """What is logged, and in which form. ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Logs, metrics and spans"

    log_level: str = option(
        "info", "Least severe log line to print.", choices=LOG_LEVELS, short=True
    )
    log_format: LogFormat = option(
        "text", "How log lines are written: text, or JSON objects.", choices=LOG_FORMATS, short=True
    )
    access_log: bool = option(
        False, "Log a line for each request that ended, successful ones too.", short=True
    )
    record: str | None = option(
        None,
        "Record each request in this file, as a line of a trace without text and ids; compressed if"
        " it ends in .gz. With several processes or models each has a file, named so. Read it with"
        " report, simulate, analyze, sweep.",
        "--record",
    )
    record_max_mb: float = option(
        256.0, "Size at which a file of the record is moved on to FILE.1, MiB.", "--record-max-mb"
    )
    record_files: int = option(
        8, "Files of the record that are kept, the one being written among them.", "--record-files"
    )
    metrics_max_workers: int = option(
        4096,
        "Most ranks with metrics of their own; further ones are summed up.",
        "--metrics-max-workers",
    )

    otel_endpoint: str | None = option(
        None,
        "OpenTelemetry collector (OTLP/gRPC) that gets spans of requests, http://HOST:PORT. Not "
        "given: that of OTEL_EXPORTER_OTLP_ENDPOINT, else none. Needs the extra otel.",
        url=True,
        short=True,
    )

    def __post_init__(self) -> None:
        for key, allowed in (("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS)):
            if getattr(self, key) not in allowed:
                text = f"{getattr(self, key)!r} is not one of {', '.join(allowed)}"
                raise bad_setting(key, text)
        require_positive(self, "record_max_mb")
        require_at_least(self, 1, "record_files")
        if self.record == "":
            raise bad_setting("record", "must name a file")
        if self.metrics_max_workers < 0:
            text = f"{self.metrics_max_workers} is less than 0; 0 shows no rank by itself"
            raise bad_setting("metrics_max_workers", text)

    def open_log(self) -> LogOutput:
        """Send all that this process logs to stderr, as these settings say.

        Close it at the end of the process.
        """
        return log_to_stderr(self.log_level, self.log_format)
