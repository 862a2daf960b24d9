"""Storage tiers with a budget: what is claimed of a worker is never more than it holds.

Each tier's tree drops blocks by itself, so that a parent may be gone from a tree that a child in
another tier hangs below, and hashes are used again for other blocks.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from instruments.tree_check import check_integrity
from oracles.tiers import DEVICE, TIERS, OracleTiers
from oracles.tree import Refused
from support.held_blocks import read_holdings

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index.actor import EventIndex
from dynamo_router.indexer.wire.codec import encode_event_message
from dynamo_router.indexer.wire.events import TIERS as NAMES
from dynamo_router.indexer.wire.events import Cleared, Removed, RouterEvent, Stored, StoredBlock

WORKERS = [WorkerWithDpRank(7, 0), WorkerWithDpRank(8, 0)]
A_WORKER = st.sampled_from(WORKERS)
A_TIER = st.sampled_from(range(TIERS))
HASHES = range(1, 9)
LOCALS = st.sampled_from([0, 1, 2])


class BoundedTiersMachine(RuleBasedStateMachine):
    @initialize(budget=st.integers(1, 12))
    def start(self, budget):
        self.budget = budget
        self.index = EventIndex(max_blocks=budget)
        self.truth = OracleTiers()
        self.next_id = dict.fromkeys(WORKERS, 1)
        self.paths = [()]

    def teardown(self):
        if hasattr(self, "index"):
            self.index.close()

    def tell(self, worker, tier, data):
        event_id = self.next_id[worker]
        self.next_id[worker] += 1
        event = RouterEvent(worker, event_id, data, NAMES[tier])
        self.index.apply(encode_event_message([event], 1, event_id - 1, 0))

    @rule(
        worker=A_WORKER,
        tier=A_TIER,
        blocks=st.lists(st.tuples(st.sampled_from(HASHES), LOCALS), min_size=1, max_size=4),
        data=st.data(),
    )
    def store(self, worker, tier, blocks, data):
        """As engines do: below a block of this tier or, but for the device, of any other."""
        tiers = self.truth.tiers(worker)
        above = [tiers[tier]] if tier == DEVICE else [tiers[tier], *tiers]
        held = {h: held[h] for held in reversed(above) for h in held}
        parent = data.draw(st.sampled_from([None, *sorted(held)]))
        path = held.get(parent, ())
        names = {external_hash for external_hash, _ in blocks}
        # A hash names one block: not one above it, nor two of a chain, but another one later on.
        on_path = {h for h, block in tiers[tier].items() if block == path[: len(block)]}
        if len(names) < len(blocks) or names & on_path or parent in names:
            return
        below = path
        for external_hash, local in blocks:
            below = (*below, local)
            others = (held for held in tiers if held is not tiers[tier])
            if any(held.get(external_hash, below) != below for held in others):
                return  # one hash for two blocks in two tiers: nobody could know which is meant
            named = {h for held in tiers for h, block in held.items() if block == below}
            if named - {external_hash}:
                return  # nor, without its parent, that this is a block it holds by another hash
        try:
            self.truth.store(worker, tier, parent, blocks)
        except Refused as error:
            raise AssertionError("it is valid") from error
        self.paths.append((*path, *(local for _, local in blocks)))
        self.tell(worker, tier, Stored(parent, [StoredBlock(*block) for block in blocks]))

    @rule(worker=A_WORKER, tier=A_TIER, hashes=st.lists(st.sampled_from(HASHES), max_size=4))
    def remove(self, worker, tier, hashes):
        held = [h for h in hashes if h in self.truth.tiers(worker)[tier]]
        self.truth.remove(worker, tier, held)
        self.tell(worker, tier, Removed(held))

    @rule(worker=A_WORKER, tier=A_TIER)
    def clear(self, worker, tier):
        self.truth.clear(worker, tier)
        self.tell(worker, tier, Cleared())

    @invariant()
    def nothing_is_claimed_that_is_not_held(self):
        for tier, tree in enumerate(self.index.native.tier_trees()):
            check_integrity(tree)
            assert len(tree) + tree.num_aliases() <= self.budget
            for worker, held in read_holdings(tree).items():
                truth = self.truth.tiers(worker)[tier]
                assert held.items() <= truth.items(), (worker, tier)
        for path in self.paths[-4:]:
            found = self.index.tier_scores(np.array(path, np.uint64))
            for worker, overlaps in found.items():
                assert sum(overlaps) <= sum(self.truth.overlap(worker, path))

    @invariant()
    def nothing_counts_as_an_orphan_as_every_parent_was_stored(self):
        assert sum(tier["orphans"] for tier in self.index.tier_counters().values()) == 0
        for source in self.index.sources():
            assert source.orphans == 0


TestBoundedTiersMachine = BoundedTiersMachine.TestCase
TestBoundedTiersMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
