"""How many gRPC connections one address may have.

grpc.aio bounds them all together and tells nobody of them, so there they are found among this
process's descriptors, and one too many is ended there: gRPC sees it as closed by its client. A
server of our own asks for each connection.
"""

import asyncio
import contextlib
import os
import socket
import stat
import sys
from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from ...base.limit_hits import LimitHits
from ...process.steps import by_steps
from ...process.supervised import stopped, supervise

LOOK_EVERY_S = 0.25
"""In between an address may have more: some hundreds, if it hurries."""
MANY = 2000
"""Descriptors; a look at so many takes some 6 ms, in slices. Beyond, looks are as much rarer."""
DESCRIPTORS = "/dev/fd"
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
        """A new one from this host was seen: whether it may stay. Nothing is noted of one that may
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

    def keep_only(self, open_now: set[int]) -> None:
        """Forget those that are not among these."""
        for connection in self._peers.keys() - open_now:
            self.remove(connection)


class ConnectionWatch:
    """Looks at the connections to a port of ours, from `start` to `close`, and ends those that are
    too many of their address. Those that an earlier look saw stay."""

    def __init__(self, port: int, share: ConnectionShare) -> None:
        self._port = port
        self._share = share
        self._others: set[int] = set()  # inodes of all else
        self._seen = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if sys.platform != "win32":  # which has no list of descriptors
            self._task = supervise("connections", self._run)

    async def close(self) -> None:
        """Stop. Idempotent."""
        await stopped(self._task)

    async def look(self) -> None:
        """Look once; the event loop has turns meanwhile."""
        seen: set[int] = set()
        new: list[tuple[int, int]] = []
        with os.scandir(DESCRIPTORS) as fds:
            for some in by_steps(fds):
                new += self._unknown((int(each.name) for each in some), seen)
                await asyncio.sleep(0)
        self._share.keep_only(seen)
        self._others &= seen
        for pairs in by_steps(sorted(new)):
            for inode, fd in pairs:
                self._judge(inode, fd)
            await asyncio.sleep(0)
        self._seen = len(seen)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S * max(1.0, self._seen / MANY))
            await self.look()

    def _unknown(self, fds: Iterable[int], seen: set[int]) -> list[tuple[int, int]]:
        """Sockets that were not there when we looked last: (inode, descriptor)."""
        found = []
        for fd in fds:
            try:
                status = os.fstat(fd)
            except OSError:  # closed since
                continue
            inode = status.st_ino
            seen.add(inode)
            if stat.S_ISSOCK(status.st_mode):
                if inode not in self._share and inode not in self._others:
                    found.append((inode, fd))
        return found

    def _judge(self, inode: int, fd: int) -> None:
        with contextlib.suppress(OSError):  # closed since
            # A descriptor of our own: the other one may be closed, and its number be another's.
            with socket.socket(fileno=os.dup(fd)) as held:
                if os.fstat(held.fileno()).st_ino != inode:
                    return
                peer = self._peer_of(held)
                if peer is None:
                    self._others.add(inode)
                elif not self._share.add(inode, peer):
                    held.shutdown(socket.SHUT_RDWR)

    def _peer_of(self, held: socket.socket) -> str | None:
        """Whose connection to us it is; None if it is no such."""
        if held.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if held.getsockname()[1] != self._port:
            return None
        try:
            return str(held.getpeername()[0])
        except OSError:  # a listener, or it is gone
            return None


def network_of(host: str) -> str:
    """Who counts as one: an IPv4 address, also one in IPv6's clothes; the /64 of an IPv6 address,
    of which its owner has them all; anything else as it is."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if not address.is_loopback:
            return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)
