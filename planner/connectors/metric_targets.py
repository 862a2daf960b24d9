"""MetricTargets: the wanted numbers as a metric, which KEDA or an HPA reads and brings about."""

from collections.abc import Mapping


class MetricTargets:
    """A Connector that only remembers; `wanted` is what `dynamo_planner_desired_replicas` shows."""

    names_victims = False

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}

    async def start(self) -> None:
        """An autoscaler comes by itself."""

    async def asked(self) -> Mapping[str, int] | None:
        """What reads the metric reports nothing back: what is registered counts."""
        return None

    async def apply(
        self, wanted: Mapping[str, int], leaving: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.wanted = dict(wanted)

    async def close(self) -> None:
        """The last numbers end with the metrics' page."""
