"""How many gRPC connections one address may have. Pure."""

from collections import Counter

from ...base.account import network_of
from ...base.limit_hits import LimitHits

LIMIT = "max_connection_share"


class ConnectionShare:
    """Connections by address, at most `most_each` of one; further ones are counted in `hits`. Pure.

    A connection is known by a number that no other one has while it is open.
    """

    def __init__(self, most_each: int, hits: LimitHits) -> None:
        self.most_each = most_each
        self._hits = hits
        self._peers: dict[int, str] = {}
        self._by_peer: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, connection: int) -> bool:
        return connection in self._peers

    def add(self, connection: int, peer: str) -> bool:
        """A new one from this host came: whether it may stay. Nothing is noted of one that may
        not."""
        peer = network_of(peer)
        if self._by_peer[peer] >= self.most_each:
            self._hits.hit(LIMIT)
            return False
        self._peers[connection] = peer
        self._by_peer[peer] += 1
        return True

    def remove(self, connection: int) -> None:
        """One that stayed has ended."""
        peer = self._peers.pop(connection)
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]
