"""A reader in the middle of an event sees a part of it done, and nothing else."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from instruments.tree_faults import watched_yield_points
from oracles.tree import OracleTree, Refused
from support.radix_tree_machine import A_WORKER, RadixTreeMachine

from dynamo_router.base.errors import EventError
from dynamo_router.indexer.tree import RadixTree


class SteppingOracle(OracleTree):
    """Does events block by block, and notes after each what matches would say."""

    def __init__(self):
        super().__init__()
        self.watched, self.states = (), []

    def watch(self, paths):
        self.watched, self.states = paths, []
        self.note()

    def note(self):
        self.states.append([self.match(path) for path in self.watched])

    def store(self, worker, parent, external_hashes, local_hashes):
        if not external_hashes:
            super().store(worker, parent, external_hashes, local_hashes)
        for external_hash, local in zip(external_hashes, local_hashes, strict=True):
            super().store(worker, parent, [external_hash], [local])
            parent = external_hash
            self.note()

    def drop(self, worker, external_hash):
        super().drop(worker, external_hash)
        self.note()


class YieldPointsMachine(RadixTreeMachine):
    """The state machine of the tree, with somebody reading at every yield point."""

    @initialize(step=st.integers(1, 4))
    def start(self, step):
        self.step, self.pauses = step, 0
        self.tree = RadixTree()
        self.oracle = SteppingOracle()
        self.chains = [[]]
        self.wild = [(None, [], [])]

    def watch(self, act_on_oracle, act_on_tree):
        paths = [[0], *self.chains[-6:]]
        self.oracle.watch(paths)
        act_on_oracle()
        seen = []
        with watched_yield_points(
            self.tree, self.step, lambda: seen.append([self.tree.match(p).scores for p in paths])
        ):
            act_on_tree()
        self.pauses += len(seen)
        for answers in seen:
            for at, scores in enumerate(answers):
                states = [state[at] for state in self.oracle.states]
                for worker in {w for some in (scores, *states) for w in some}:
                    known = [state.get(worker, 0) for state in states]
                    assert min(known) <= scores.get(worker, 0) <= max(known)

    def both(self, act):
        codes = [None, None]

        def on_oracle():
            try:
                act(self.oracle)
            except Refused as error:
                codes[0] = error.code

        def on_tree():
            try:
                act(self.tree)
            except EventError as error:
                codes[1] = error.code

        self.watch(on_oracle, on_tree)
        assert codes[0] == codes[1]

    @rule(worker=A_WORKER)
    def clear(self, worker):
        self.watch(
            lambda: self.oracle.clear(worker), lambda: self.tree.clear_all_blocks(tuple(worker))
        )

    @rule(worker=A_WORKER, length=st.integers(20, 60), first=st.booleans())
    def store_and_remove_a_long_chain(self, worker, length, first):
        """From its first block or from its last: forgetting much at once has yield points too."""
        path = [3] * length
        self.chains.append(path)
        hashes = [1000 + i for i in range(length)]
        self.both(lambda tree: tree.store(worker, None, hashes, path))
        before = self.pauses
        self.both(lambda tree: tree.remove(worker, hashes if first else hashes[::-1]))
        assert self.pauses - before >= length // self.step // 2


TestYieldPointsMachine = YieldPointsMachine.TestCase
TestYieldPointsMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
