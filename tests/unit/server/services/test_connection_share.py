"""Shares of connections: whose they are, and which one is too many."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.polling import until

from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.server.services.connection_share import (
    LIMIT,
    ConnectionShare,
    ConnectionWatch,
    network_of,
)
from dynamo_router.server.services.connections import share_of

MOST_EACH = 3


class Shares(RuleBasedStateMachine):
    """Connections come and go; nobody has too many, and nobody is refused for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.hits = LimitHits()
        self.share = ConnectionShare(MOST_EACH, self.hits)
        self.open: dict[int, str] = {}
        self.made = self.refused = 0

    @rule(peer=st.sampled_from("abc"))
    def connects(self, peer: str) -> None:
        self.made += 1
        may_stay = Counter(self.open.values())[peer] < MOST_EACH
        assert self.share.add(self.made, peer) is may_stay
        if may_stay:
            self.open[self.made] = peer
        else:
            self.refused += 1

    @rule(data=st.data())
    def some_leave(self, data: Any) -> None:
        left = data.draw(st.sets(st.sampled_from(sorted(self.open)))) if self.open else set()
        self.open = {number: peer for number, peer in self.open.items() if number not in left}
        self.share.keep_only({*self.open, 10**9})

    @invariant()
    def it_knows_those_that_are_open(self) -> None:
        assert len(self.share) == len(self.open)
        assert all(number in self.share for number in self.open)
        assert self.hits[LIMIT] == self.refused


TestShares = Shares.TestCase


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("", ""),
        ("junk", "junk"),
    ],
)
def test_whose_an_address_is(host: str, network: str) -> None:
    assert network_of(host) == network


def test_a_share_is_never_nothing() -> None:
    assert (share_of(100, 0.5), share_of(100, 0.001), share_of(4, 1.0)) == (50, 8, 4)


@pytest.mark.usefixtures("leaves_nothing")
async def test_the_watch_ends_what_is_too_much_and_leaves_the_rest() -> None:
    accepted: list[Any] = []

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            accepted.append(transport)

    loop = asyncio.get_running_loop()
    hits = LimitHits()
    servers = [await loop.create_server(Peer, "127.0.0.1", 0) for _ in range(2)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    watch = ConnectionWatch(ports[0], ConnectionShare(2, hits))

    async def connect(port: int) -> Any:
        return await asyncio.open_connection("127.0.0.1", port)

    first = [await connect(ports[0]) for _ in range(2)]
    others = [await connect(ports[1]) for _ in range(4)]
    await until(lambda: len(accepted) == 6)
    await watch.look()
    assert hits[LIMIT] == 0
    late = [await connect(ports[0]) for _ in range(3)]
    await until(lambda: len(accepted) == 9)
    await watch.look()
    assert hits[LIMIT] == 3
    for reader, _ in late:
        assert await asyncio.wait_for(reader.read(1), 60) == b""
    for _, writer in first:
        writer.write(b"x")
        await writer.drain()
    assert not any(reader.at_eof() for reader, _ in (*first, *others))
    first[0][1].close()
    await until(lambda: sum(t.is_closing() for t in accepted) >= 4)
    await watch.look()
    again = await connect(ports[0])  # there is room for it now
    await until(lambda: len(accepted) == 10)
    await watch.look()
    assert hits[LIMIT] == 3 and not again[0].at_eof()
    for _, writer in (*first, *others, *late, again):
        writer.close()
    for transport in accepted:
        transport.close()
    for server in servers:
        server.close()
        await server.wait_closed()
