"""Any sequence of events on the radix tree and on its oracle, compared after each."""

import json

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from instruments.tree_check import check_integrity
from instruments.tree_faults import fail_allocations_after
from oracles.tree import OracleTree, Refused
from support.held_blocks import TOP, chained_hashes, read_holdings

from dynamo_router.base.errors import EventError
from dynamo_router.indexer.tree import RadixTree

# A crowd, so that sets of workers outgrow their lists; the first few do most of the work.
WORKERS = [(w, r) for w in (0, 1, TOP) for r in (0, 1)] + [(100 + w, 0) for w in range(90)]
A_WORKER = st.sampled_from(WORKERS[:6])
LOCALS = st.sampled_from([0, 1, 2, TOP])
CHAINS = st.lists(LOCALS, max_size=12)
# Hashes that collide between unrelated blocks.
WILD = st.sampled_from([0, 1, 2, 3, 1 << 32, TOP])


class RadixTreeMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.tree = RadixTree()
        self.oracle = OracleTree()
        self.chains = [[]]  # that were stored, to be matched
        self.wild = [(None, [], [])]  # events with hashes that collide, for others to repeat

    def both(self, act):
        """Do it to both; they must refuse alike."""
        refused = None
        try:
            act(self.oracle)
        except Refused as error:
            refused = error.code
        try:
            act(self.tree)
        except EventError as error:
            assert error.code == refused
        else:
            assert refused is None

    def store_path(self, worker, path, hashes, at):
        """Store path[at:], below what is above."""
        self.chains.append(path)
        parent = hashes[at - 1] if at else None
        self.both(lambda tree: tree.store(worker, parent, hashes[at:], path[at:]))

    def known_path(self, data):
        """A path some worker holds, or the empty one."""
        return list(data.draw(st.sampled_from(self.chains)))

    @rule(worker=A_WORKER, more=CHAINS, salt=st.sampled_from([7, 7, 7, 8]), data=st.data())
    def store(self, worker, more, salt, data):
        path = self.known_path(data)[: data.draw(st.integers(0, 12))] + more
        at = data.draw(st.sampled_from([0, len(path) - len(more), len(path)]))
        self.store_path(worker, path[:30], chained_hashes(path, salt)[:30], min(at, 30))

    @rule(first=st.integers(0, 95), n=st.integers(1, 80), data=st.data())
    def store_by_many(self, first, n, data):
        path = self.known_path(data)
        for worker in WORKERS[first : first + n]:
            self.store_path(worker, path, chained_hashes(path, 7), 0)

    @rule(
        worker=A_WORKER,
        parent=st.one_of(st.none(), WILD),
        blocks=st.lists(st.tuples(WILD, LOCALS), max_size=5),
    )
    def store_wildly(self, worker, parent, blocks):
        external_hashes, local_hashes = [b[0] for b in blocks], [b[1] for b in blocks]
        self.both(lambda tree: tree.store(worker, parent, external_hashes, local_hashes))
        self.chains.append(local_hashes)
        self.wild.append((parent, external_hashes, local_hashes))

    @rule(workers=st.lists(st.sampled_from(WORKERS), max_size=4), data=st.data())
    def repeat_wildly(self, workers, data):
        event = data.draw(st.sampled_from(self.wild[-4:]))
        for worker in workers:
            self.both(lambda tree, w=worker: tree.store(w, *event))

    @rule(
        workers=st.lists(st.sampled_from(WORKERS), max_size=6), external_hash=WILD, data=st.data()
    )
    def collide(self, workers, external_hash, data):
        """Several workers, one hash, two blocks."""
        for worker in workers:
            local = data.draw(st.sampled_from([0, 1]))
            self.both(lambda tree, w=worker, lo=local: tree.store(w, None, [external_hash], [lo]))

    @rule(worker=A_WORKER, data=st.data())
    def remove_run(self, worker, data):
        """What engines do: evict along a chain, from either end, or from its middle."""
        path = self.known_path(data)
        first = data.draw(st.integers(0, len(path)))
        hashes = chained_hashes(path, data.draw(st.sampled_from([7, 8])))[first:]
        hashes = hashes[: data.draw(st.integers(0, len(path)))]
        hashes = hashes[:: data.draw(st.sampled_from([1, -1, -1]))]
        self.both(lambda tree: tree.remove(worker, hashes))

    @rule(worker=A_WORKER, data=st.data())
    def remove_anything(self, worker, data):
        hashes = sorted(self.oracle.held.get(worker, {})) + [5]
        some = data.draw(st.lists(st.sampled_from(hashes), max_size=5))
        self.both(lambda tree: tree.remove(worker, some))

    @rule(first=st.integers(0, 95), n=st.integers(1, 80), data=st.data())
    def remove_by_many(self, first, n, data):
        path = self.known_path(data)
        hashes = chained_hashes(path, 7)[data.draw(st.integers(0, len(path))) :]
        for worker in WORKERS[first : first + n]:
            if worker in self.oracle.held:
                self.both(lambda tree, w=worker: tree.remove(w, hashes))

    @rule(worker=A_WORKER)
    def clear(self, worker):
        self.tree.clear_all_blocks(worker)
        self.oracle.clear(worker)

    @rule(worker=A_WORKER)
    def clear_every_rank(self, worker):
        self.tree.clear_all_blocks(worker[0])
        for rank in (0, 1):
            self.oracle.clear((worker[0], rank))

    @rule(worker=A_WORKER, whole=st.booleans())
    def remove_worker(self, worker, whole):
        self.tree.remove_worker(worker[0] if whole else worker)
        for rank in (0, 1) if whole else (worker[1],):
            self.oracle.drop_worker((worker[0], rank))

    @rule(worker=A_WORKER, requests=st.integers(0, 3), more=CHAINS, data=st.data())
    def store_short_of_memory(self, worker, requests, more, data):
        """What was not applied is applied by the same event again."""
        path = (self.known_path(data) + more)[:30]
        hashes = chained_hashes(path, 7)
        fail_allocations_after(self.tree, requests)
        try:
            self.tree.store(worker, None, hashes, path)
        except (MemoryError, EventError):
            pass
        check_integrity(self.tree)
        fail_allocations_after(self.tree, None)
        self.store_path(worker, path, hashes, 0)

    @rule(more=CHAINS, data=st.data())
    def match(self, more, data):
        path = self.known_path(data) + more
        scores = self.oracle.match(path)
        found = self.tree.match(path)
        assert found.scores == scores
        assert dict(zip(found.workers.tolist(), found.overlaps.tolist(), strict=True)) == scores
        early = self.tree.find_matches(path, early_exit=True).scores
        assert early.keys() == scores.keys()
        short = [w for w in early if early[w] != scores[w]]
        assert not short or (len(short) == 1 and early[short[0]] < scores[short[0]])

    @rule()
    def dump_and_replay(self):
        copy = RadixTree()
        for line in self.tree.dump_tree_as_events():
            event = json.loads(line)
            copy.apply_event(event["worker_id"], json.dumps(event["event"]).encode())
        check_integrity(copy)
        kept = {worker: held for worker, held in self.oracle.holdings().items() if held}
        assert read_holdings(copy) == kept

    @invariant()
    def agrees(self):
        check_integrity(self.tree)
        assert read_holdings(self.tree) == self.oracle.holdings()
        assert len(self.tree) == self.oracle.size()
        for path in self.chains[-4:]:
            assert self.tree.match(path).scores == self.oracle.match(path)
