"""What the router tells of itself, and how much of it: a section of the service's settings."""

from dataclasses import dataclass

from ..runtime.settings import bad_setting, option


@dataclass(frozen=True, kw_only=True)
class ObservabilityConfig:
    """Metrics, access log. Raises ConfigError, naming the key, on a bad value."""

    metrics_max_workers: int = option(
        4096,
        "Most ranks with metrics of their own; what is beyond is summed up.",
    )
    access_log: bool = option(
        False, "Log a line for each request that ended, also for those that ended well."
    )

    def __post_init__(self) -> None:
        if self.metrics_max_workers < 0:
            raise bad_setting("metrics_max_workers", "must be at least 0")
