"""The event index agrees with the oracle on every storage tier, and its trees are sound."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from instruments.tree_check import check_integrity
from instruments.tree_faults import fail_allocations_after
from oracles.tiers import TIERS, OracleTiers
from oracles.tree import Refused
from support.held_blocks import TOP, chained_hashes, read_holdings

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.wire.codec import encode_event_message
from dynamo_router.indexer.wire.events import TIERS as NAMES
from dynamo_router.indexer.wire.events import Cleared, Removed, RouterEvent, Stored, StoredBlock

WORKERS = [WorkerWithDpRank(*pair) for pair in ((7, 0), (7, 1), (8, 0), (2**64 - 1, 2**32 - 1))]
A_WORKER = st.sampled_from(WORKERS)
A_TIER = st.sampled_from(range(TIERS))
LOCALS = st.sampled_from([0, 1, 2, TOP])
WILD = st.sampled_from([0, 1, 2, 3, 1 << 32, TOP])  # hashes that collide
CHAINS = st.lists(LOCALS, max_size=8)
LONGEST = 24


class TiersMachine(RuleBasedStateMachine):
    @initialize(unbound=st.sets(A_WORKER, max_size=2))
    def start(self, unbound):
        self.index = EventIndex()
        self.oracle = OracleTiers()
        self.next_id = dict.fromkeys(WORKERS, 1)
        self.publishers = dict.fromkeys(WORKERS, 1)
        self.chains = [[]]  # that were stored, to be matched
        self.numbers = {w: n for n, w in enumerate(WORKERS) if w not in unbound}
        for worker, number in self.numbers.items():
            self.index.bind(worker, number)

    def teardown(self):
        if hasattr(self, "index"):
            self.index.close()

    def tell(self, worker, tier, data):
        event = RouterEvent(worker, self.next_id[worker], data, NAMES[tier])
        self.index.apply(self.envelope(worker, event))
        self.next_id[worker] += 1

    def envelope(self, worker, event):
        return encode_event_message([event], self.publishers[worker], self.next_id[worker] - 1, 0)

    def store_both(self, worker, tier, parent, hashes, local_hashes):
        blocks = list(zip(hashes, local_hashes, strict=True))
        before = self.index.tier_counters()[NAMES[tier]]
        refused = None
        try:
            self.oracle.store(worker, tier, parent, blocks)
        except Refused as error:
            refused = error.code
        self.tell(worker, tier, Stored(parent, [StoredBlock(*block) for block in blocks]))
        after = self.index.tier_counters()[NAMES[tier]]
        assert after["orphans"] - before["orphans"] == (refused == "parent_not_found")
        assert after["stored"] - before["stored"] == (0 if refused else len(blocks))

    def known_path(self, data):
        return list(data.draw(st.sampled_from(self.chains)))

    @rule(
        worker=A_WORKER,
        tier=A_TIER,
        more=CHAINS,
        salt=st.sampled_from([7, 7, 7, 8]),
        data=st.data(),
    )
    def store(self, worker, tier, more, salt, data):
        """As engines do: below a block that may be held in another tier, or in none."""
        path = (self.known_path(data) + more)[:LONGEST]
        at = data.draw(st.integers(0, len(path)))
        hashes = chained_hashes(path, salt)
        self.chains.append(path)
        self.store_both(worker, tier, hashes[at - 1] if at else None, hashes[at:], path[at:])

    @rule(worker=A_WORKER, tiers=st.permutations(range(TIERS)), data=st.data())
    def spread(self, worker, tiers, data):
        """A known prompt, cut over the tiers, from above."""
        path = self.known_path(data)
        hashes, at = chained_hashes(path, 7), 0
        for tier in tiers:
            end = data.draw(st.integers(at, len(path)))
            parent = hashes[at - 1] if at else None
            self.store_both(worker, tier, parent, hashes[at:end], path[at:end])
            at = end

    @rule(
        worker=A_WORKER,
        tier=A_TIER,
        parent=st.one_of(st.none(), WILD),
        blocks=st.lists(st.tuples(WILD, LOCALS), max_size=4),
    )
    def store_wildly(self, worker, tier, parent, blocks):
        """Hashes that collide within a tier and between tiers."""
        local_hashes = [local for _, local in blocks]
        self.chains.append(local_hashes)
        self.store_both(
            worker, tier, parent, [external_hash for external_hash, _ in blocks], local_hashes
        )

    @rule(worker=A_WORKER, down=A_TIER, data=st.data())
    def move(self, worker, down, data):
        """Blocks leave the device for another tier, from the leaf up or from the root down."""
        path = self.known_path(data)
        hashes = chained_hashes(path, 7)
        for at in data.draw(st.sampled_from([range(len(path)), range(len(path) - 1, -1, -1)])):
            if hashes[at] in self.oracle.tiers(worker)[0]:
                parent = hashes[at - 1] if at else None
                self.store_both(worker, down, parent, [hashes[at]], [path[at]])
                if down:
                    self.oracle.remove(worker, 0, [hashes[at]])
                    self.tell(worker, 0, Removed([hashes[at]]))

    @rule(worker=A_WORKER, tier=A_TIER, data=st.data())
    def remove(self, worker, tier, data):
        hashes = [*sorted(self.oracle.tiers(worker)[tier]), 5]
        some = data.draw(st.lists(st.sampled_from(hashes), max_size=6))
        self.oracle.remove(worker, tier, some)
        self.tell(worker, tier, Removed(some))

    @rule(worker=A_WORKER, tier=A_TIER)
    def clear(self, worker, tier):
        self.oracle.clear(worker, tier)
        self.tell(worker, tier, Cleared())

    @rule(worker=A_WORKER, tier=A_TIER, data=st.sampled_from([Removed([]), Cleared()]))
    def lose_an_event(self, worker, tier, data):
        """Whatever the next one is, and of whatever tier: what was said before is not believed."""
        if self.next_id[worker] > 1:
            self.next_id[worker] += 1
            self.oracle.forget(worker)
        self.tell(worker, tier, data)

    @rule(worker=A_WORKER, number=st.integers(0, len(WORKERS) - 1))
    def leave_and_come_back(self, worker, number):
        self.index.unbind(worker)
        self.oracle.forget(worker)
        self.next_id[worker] = 1
        self.publishers[worker] += 1
        self.numbers.pop(worker, None)
        if number not in self.numbers.values():
            self.index.bind(worker, number)
            self.numbers[worker] = number

    @rule(worker=A_WORKER, tier=A_TIER, requests=st.integers(0, 4), more=CHAINS, data=st.data())
    def store_short_of_memory(self, worker, tier, requests, more, data):
        """What was not applied is applied by the same event again."""
        path = (self.known_path(data) + more)[:LONGEST]
        hashes = chained_hashes(path, 7)
        at = data.draw(st.integers(0, len(path)))
        parent = hashes[at - 1] if at else None
        tree = self.index.native.tier_trees()[tier]
        fail_allocations_after(tree, requests)
        blocks = [StoredBlock(*block) for block in zip(hashes[at:], path[at:], strict=True)]
        self.tell(worker, tier, Stored(parent, blocks))
        check_integrity(tree)
        fail_allocations_after(tree, None)
        self.chains.append(path)
        self.store_both(worker, tier, parent, hashes[at:], path[at:])

    @invariant()
    def agrees(self):
        for tier, tree in enumerate(self.index.native.tier_trees()):
            check_integrity(tree)
            held = {w: tiers[tier] for w, tiers in self.oracle.held.items() if tiers[tier]}
            assert {w: hashes for w, hashes in read_holdings(tree).items() if hashes} == held
        for path in self.chains[-4:]:
            self.check_overlaps(path)

    def check_overlaps(self, path):
        local = np.array(path, dtype=np.uint64)
        expected = {w: self.oracle.overlap(w, path) for w in WORKERS}
        assert self.index.tier_scores(local) == {w: o for w, o in expected.items() if sum(o)}
        overlaps = np.full(len(WORKERS), 9, np.uint32)
        lower = np.full((3, len(WORKERS)), 9, np.uint32)
        self.index.match(local, overlaps, lower)
        rows = np.zeros((4, len(WORKERS)), np.uint32)
        for worker, number in self.numbers.items():
            device, host, disk, external = expected[worker]
            rows[:, number] = device, host, disk + external, sum(expected[worker])
        assert [overlaps.tolist(), *lower.tolist()] == rows.tolist()


TestTiersMachine = TiersMachine.TestCase
TestTiersMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
