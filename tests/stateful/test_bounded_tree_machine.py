"""A tree with a budget: never more than the truth, exact outside what it dropped, within bounds.

Two plain models run along. One is the truth. The other is told after every event which blocks the
tree no longer has; it must agree with the tree in all else, and what it is told must be allowed.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from instruments.tree_check import check_integrity
from instruments.tree_faults import fail_allocations_after
from oracles.tree import OracleTree, Refused
from support.held_blocks import TOP, chained_hashes, read_holdings

from dynamo_router.base.errors import EventError
from dynamo_router.indexer.tree import RadixTree
from dynamo_router.indexer.tree._inspect import read_aliases, read_edges

WORKERS = [(0, 0), (0, 1), (1, 0), (TOP, 0)] + [(100 + w, 0) for w in range(80)]
A_WORKER = st.sampled_from(WORKERS[:4])
LOCALS = st.sampled_from([0, 1, 2, TOP])
CHAINS = st.lists(LOCALS, max_size=12)
WILD = st.sampled_from([0, 1, 2, 3, TOP])
SLACK = 4096  # _evict.pxd: BATCH


def refusal(act):
    try:
        act()
    except (Refused, EventError) as error:
        return error.code
    return None


class BoundedTreeMachine(RuleBasedStateMachine):
    @initialize(budget=st.integers(1, 60))
    def start(self, budget):
        self.budget = budget
        self.tree = RadixTree(max_blocks=budget)
        self.truth = OracleTree()
        self.told = OracleTree()
        self.missing = {}
        self.lossy = set()  # workers that lost something to the budget
        self.misled = set()  # that removed what they never held meanwhile
        self.dropped = 0
        self.chains = [[]]

    def store_blocks(self, worker, parent, hashes, path):
        told = self.told
        if parent is None or parent in told.held.get(worker, {}):
            expected = refusal(lambda: told.store(worker, parent, hashes, path))
        else:
            held = told.held.setdefault(worker, {})
            expected = "parent_evicted" if self.missing.get(worker) else "parent_not_found"
            for external_hash in hashes if worker in self.lossy else ():
                if external_hash in held:
                    told.drop(worker, external_hash)
            if expected == "parent_evicted":
                self.missing[worker] += len(hashes)
        refusal(lambda: self.truth.store(worker, parent, hashes, path))
        assert refusal(lambda: self.tree.store(worker, parent, hashes, path)) == expected
        self.take_note()

    def take_note(self):
        """See what the tree dropped, check that it may, and tell the model."""
        size, kept = self.told.size(), read_holdings(self.tree)
        gone = {
            (worker, external_hash): path
            for worker, held in self.told.holdings().items()
            for external_hash, path in held.items()
            if external_hash not in kept.get(worker, {})
        }
        assert len(self.tree) + self.tree.num_aliases() == self.charged() <= self.budget
        # Each of them may have been an alias before some were dropped.
        most = size + sum(map(len, self.told.holdings().values()))
        if most <= self.budget:
            assert not gone
        assert gone or size <= self.budget
        if not gone:
            return
        target = self.budget - min(self.budget // 16, SLACK)
        assert len(set(gone.values())) <= most - target
        left = {path for held in kept.values() for path in held.values()}
        lost = set(gone.values())
        for path in left:  # dropped for everybody, with all that continues it
            assert not any(path[:n] in lost for n in range(1, len(path) + 1))
        for worker, external_hash in gone:
            self.told.drop(worker, external_hash)
            self.missing[worker] = self.missing.get(worker, 0) + 1
            self.lossy.add(worker)
        blocks, branches = self.tree.evicted()
        assert blocks - self.dropped == size - len(self.tree) and branches > 0
        self.dropped = blocks

    def known_path(self, data):
        return list(data.draw(st.sampled_from(self.chains[-12:])))

    @rule(worker=A_WORKER, more=CHAINS, salt=st.sampled_from([7, 7, 7, 8]), data=st.data())
    def store(self, worker, more, salt, data):
        path = (self.known_path(data)[: data.draw(st.integers(0, 12))] + more)[:30]
        hashes = chained_hashes(path, salt)
        at = min(len(path), data.draw(st.sampled_from([0, len(path) - len(more), len(path)])))
        self.chains.append(path)
        at = max(at, 0)
        self.store_blocks(worker, hashes[at - 1] if at else None, hashes[at:], path[at:])

    @rule(first=st.integers(0, 83), n=st.integers(1, 80), data=st.data())
    def store_by_many(self, first, n, data):
        path = self.known_path(data)
        for worker in WORKERS[first : first + n]:
            self.store_blocks(worker, None, chained_hashes(path, 7), path)

    @rule(
        worker=A_WORKER,
        parent=st.one_of(st.none(), WILD),
        blocks=st.lists(st.tuples(WILD, LOCALS), max_size=5),
    )
    def store_wildly(self, worker, parent, blocks):
        hashes, path = [b[0] for b in blocks], [b[1] for b in blocks]
        self.chains.append(path)
        self.store_blocks(worker, parent, hashes, path)

    @rule(worker=A_WORKER, data=st.data())
    def remove(self, worker, data):
        """What it holds, in the tree or not, or something it never held: the tree cannot tell that
        from what it dropped, so that `missing` is no upper estimate any more."""
        hashes = sorted(self.truth.held.get(worker, {}))
        some = (
            data.draw(st.lists(st.sampled_from(hashes), max_size=6, unique=True)) if hashes else []
        )
        if data.draw(st.booleans()):
            some.append(data.draw(st.sampled_from([5, 1])))
            if some[-1] in hashes:
                some.pop()
            elif self.missing.get(worker):
                self.misled.add(worker)
        unknown = len(
            [
                external_hash
                for external_hash in some
                if external_hash not in self.told.held.get(worker, {})
            ]
        )
        refusal(lambda: self.told.remove(worker, some))
        refusal(lambda: self.truth.remove(worker, some))
        excused = min(unknown, self.missing.get(worker, 0))
        expected = "block_not_found" if unknown > excused else None
        assert refusal(lambda: self.tree.remove(worker, some)) == expected
        self.missing[worker] = self.missing.get(worker, 0) - excused
        self.take_note()

    @rule(worker=A_WORKER)
    def clear(self, worker):
        self.tree.clear_all_blocks(worker)
        self.told.clear(worker)
        self.truth.clear(worker)
        self.forget(worker)

    def forget(self, worker):
        self.missing[worker] = 0
        self.lossy.discard(worker)
        self.misled.discard(worker)

    def charged(self):
        """Blocks and aliases, counted in the structure."""
        return sum(len(edge[3]) for edge in read_edges(self.tree)) + len(read_aliases(self.tree))

    @rule(worker=A_WORKER)
    def remove_worker(self, worker):
        self.tree.remove_worker(worker)
        self.told.drop_worker(worker)
        self.truth.drop_worker(worker)
        self.forget(worker)

    @rule(worker=A_WORKER, requests=st.integers(0, 2), data=st.data())
    def run_short_of_memory(self, worker, requests, data):
        """What a failed event left behind is made good by a clear; the bounds hold all the time."""
        path = self.known_path(data) + [0, 1, 2] * 5
        fail_allocations_after(self.tree, requests)
        try:
            self.tree.store(worker, None, chained_hashes(path, 7), path)
        except (MemoryError, EventError):
            pass
        fail_allocations_after(self.tree, None)
        for everybody in WORKERS:
            self.clear(everybody)
        self.dropped = self.tree.evicted()[0]

    @rule(more=CHAINS, data=st.data())
    def match(self, more, data):
        path = self.known_path(data) + more
        scores = self.tree.match(path).scores
        assert scores == self.told.match(path)
        truth = self.truth.match(path)
        assert all(blocks <= truth[worker] for worker, blocks in scores.items())

    @invariant()
    def agrees(self):
        check_integrity(self.tree)
        held = {worker: some for worker, some in read_holdings(self.tree).items() if some}
        assert held == {worker: some for worker, some in self.told.holdings().items() if some}
        for worker, truth in self.truth.holdings().items():
            kept = held.get(worker, {})
            assert kept.items() <= truth.items()
            missing = self.tree.num_missing(worker)
            assert missing == self.missing.get(worker, 0)
            assert missing >= len(truth) - len(kept) or worker in self.misled


TestBoundedTreeMachine = BoundedTreeMachine.TestCase
TestBoundedTreeMachine.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
