"""Shares of connections: whose they are, and which one is too many."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo_router.base.account import network_of
from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.server.services.connection_share import LIMIT, ConnectionShare
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
        for number in left:
            self.share.remove(number)
            del self.open[number]

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
