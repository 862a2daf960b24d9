"""Several routers in front of one simulated fleet, and the way between them: late, lossy, cut."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from ...process.setting_checks import require_at_least, require_finite, require_share
from ...process.settings import bad_setting, option
from ...router.kv_router import KvRouter
from ...router.replicas import Replica
from ...slots.peers import Message, decode_message, encode_message

BATCH_S = 0.002
"""As the routers that serve: how long an event may wait for others to be told with it,"""
TICK_S = 0.05
"""and how often each looks what there is to say."""


@dataclass(frozen=True, kw_only=True)
class ReplicaConfig:
    """How many routers, and how they hear each other. ConfigError on a bad value."""

    routers: int = option(1, "Routers in front of the workers; requests go to them in turn.")
    replica_sync: bool = option(True, "Several routers tell each other what they have booked.")
    replica_delay_ms: float = option(1.0, "How long what they say is under way.")
    replica_loss: float = option(0.0, "Share of what they say that gets lost.")
    replica_cut_s: str | None = option(
        None, "From when to when nothing they say gets through: two seconds of the run, as 60-90."
    )

    def __post_init__(self) -> None:
        require_at_least(self, 1, "routers")
        require_finite(self, 0, "replica_delay_ms")
        require_share(self, "replica_loss")
        _ = self.cut

    @property
    def cut(self) -> tuple[float, float]:
        """From when to when nothing gets through."""
        if self.replica_cut_s is None:
            return math.inf, math.inf
        try:
            begin, end = map(float, self.replica_cut_s.split("-"))
        except ValueError:
            raise bad_setting("replica_cut_s", "must be two numbers, as 60-90") from None
        return begin, end


class ReplicaNetwork:
    """Carries what the replicas of some routers say, in virtual time."""

    def __init__(self, routers: Sequence[KvRouter], config: ReplicaConfig, seed: int) -> None:
        self._config, self._cut = config, config.cut
        self._replicas = [
            Replica(router.count_peers(), number + 1, f"router {number}")
            for number, router in enumerate(routers)
        ]
        self._rng = Random(seed)
        self._sent: list[tuple[float, int, int, bytes]] = []  # a heap: when it is there, to whom
        self._count = 0
        self._flush_at = self._tick_at = 0.0

    @property
    def next_time(self) -> float:
        """When there is something to do."""
        arrives = self._sent[0][0] if self._sent else math.inf
        return min(self._flush_at, self._tick_at, arrives)

    def act(self, now: float) -> None:
        """Do what is due by `now`."""
        while self._sent and self._sent[0][0] <= now:
            _, _, number, data = heapq.heappop(self._sent)
            self._replicas[number].hear(decode_message(data), now)
        if self._flush_at <= now:
            self._flush_at = now + BATCH_S
            for number, replica in enumerate(self._replicas):
                self._say(number, replica.batches(), now)
        if self._tick_at <= now:
            self._tick_at = now + TICK_S
            for number, replica in enumerate(self._replicas):
                self._say(number, replica.tick(now), now)

    def _say(self, sender: int, messages: Iterable[Message], now: float) -> None:
        config = self._config
        begin, end = self._cut
        for message in messages:
            data = encode_message(message)
            for number in range(len(self._replicas)):
                lost = begin <= now < end or self._rng.random() < config.replica_loss
                if number != sender and not lost:
                    self._count += 1
                    at = now + config.replica_delay_ms / 1e3
                    heapq.heappush(self._sent, (at, self._count, number, data))
