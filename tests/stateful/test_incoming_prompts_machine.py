"""Blocks of prompts that come from other engines: each has one owner, in every order of turns.

The event loop is run turn by turn, so that another prompt can allocate blocks between any two steps
of one that is given up.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo_router.engines.mocker.engine import MockEngine
from dynamo_router.engines.mocker.handovers import RankTransfers
from dynamo_router.engines.mocker.live import LiveEngine, TokenStream
from dynamo_router.engines.transfer import (
    BlockGrants,
    BlockState,
    Notification,
    Offer,
    Ticket,
    TransferError,
    TransferMetrics,
)
from dynamo_router.engines.transfer.tickets import finished, settled

BLOCKS, BLOCK = 16, 4


class HeldTransfer:
    """A Transfer whose reads end when the test says so."""

    kind, engine_id = "held", "d"
    finished, settled = staticmethod(finished), staticmethod(settled)
    arena = SimpleNamespace(blocks=0)

    def __init__(self) -> None:
        self.grants = BlockGrants(BLOCKS)
        self.tickets: list[Ticket] = []

    def connect(self, metadata: bytes) -> Any:
        return SimpleNamespace(engine_id="p")

    def read(self, *asked: Any, deadline_s: float) -> Ticket:
        ticket = Ticket(0)
        self.tickets.append(ticket)
        return ticket

    def notify(self, *notification: Any) -> None: ...

    listen = expect = notify


class IncomingPrompts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.transfer = HeldTransfer()
        self.arrived: list[int] = []
        """blocks of prompts that have come"""
        self.others: list[int] = []
        """blocks of other owners"""
        self.prompts = 0
        engine = SimpleNamespace(
            contents=None,
            config=SimpleNamespace(block_size=BLOCK),
            arrive=lambda request_id, blocks: self.arrived.extend(blocks),
            abort=lambda request_id: False,
        )
        self.live = LiveEngine(cast(MockEngine, engine))

        async def no_metadata(engine_id: str) -> bytes | None:
            return None

        self.rank = RankTransfers(
            cast(Any, self.transfer),
            self.live,
            no_metadata,
            TransferMetrics(),
            lease_s=1.0,
            deadline_s=1.0,
        )
        land = self.transfer.grants.land  # as a queue does with blocks that a peer has written
        queue = SimpleNamespace(on_notification=lambda word: land(word.attempt))
        self.rank.remote = cast(Any, queue)

    def run_turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    @rule(count=st.integers(1, 5))
    def bring(self, count: int) -> None:
        if count > self.transfer.grants.free_blocks:
            return
        self.prompts += 1
        request_id, places = f"r{self.prompts}", tuple(range(count))
        sequence = SimpleNamespace(
            request=SimpleNamespace(request_id=request_id),
            prompt_len=count * BLOCK,
            prompt_hashes=lambda: list(places),
            hint=None,
            offer=Offer("p", request_id, places, places),
            metadata=b"p",
        )
        self.live._streams[request_id] = TokenStream(cast(Any, sequence))

        async def begin() -> None:
            self.live._bring(self.rank, request_id, count * BLOCK)

        self.loop.run_until_complete(begin())

    @rule(choice=st.integers(0, 1000))
    def abort(self, choice: int) -> None:
        if waiting := list(self.live._bringing):
            self.live.abort(waiting[choice % len(waiting)])

    @rule(choice=st.integers(0, 1000), how=st.sampled_from(["done", "failed", "late"]))
    def end(self, choice: int, how: str) -> None:
        moving = [each for each in self.transfer.tickets if each.is_moving]
        if moving:
            error = None if how == "done" else TransferError(how, "timeout")
            moving[choice % len(moving)].end(error, is_moving=how == "late")

    @rule(choice=st.integers(0, 1000))
    def make_up(self, choice: int) -> None:
        """A peer says that it has written what this engine reads."""
        if attempts := self.transfer.grants.open_attempts:
            self.rank.on_notification("p", Notification(attempts[choice % len(attempts)]))

    @rule(count=st.integers(1, 8))
    def allocate(self, count: int) -> None:
        """Another prompt takes blocks that are free."""
        count = min(count, self.transfer.grants.free_blocks)
        self.others += self.transfer.grants.allocate(count)

    @rule(count=st.integers(1, 8))
    def give_back(self, count: int) -> None:
        given, self.others = self.others[:count], self.others[count:]
        self.transfer.grants.free(given)

    @rule()
    def turn(self) -> None:
        self.run_turn()

    @invariant()
    def each_block_has_one_owner(self) -> None:
        owned = self.others + self.arrived
        assert len(set(owned)) == len(owned), "a block has two owners"
        for block in self.others:
            assert self.transfer.grants.state(block) is BlockState.ALLOCATED
        for block in self.arrived:
            assert self.transfer.grants.state(block) is BlockState.LANDED

    def teardown(self) -> None:
        try:
            for request_id in list(self.live._bringing):
                self.live.abort(request_id)
            for _ in range(20):
                for ticket in self.transfer.tickets:
                    ticket.end()
                self.run_turn()
            assert not self.live._bringing
            self.each_block_has_one_owner()
            owned = len(self.others) + len(self.arrived)
            assert self.transfer.grants.free_blocks == BLOCKS - owned, "blocks have no owner"
        finally:
            self.loop.close()


TestIncomingPrompts = IncomingPrompts.TestCase
