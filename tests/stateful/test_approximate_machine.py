"""The approximate index agrees with the oracle at any time, after any routes."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from instruments.tree_check import check_integrity
from oracles.approximate import OracleApproximate

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.approximate import ApproximateIndex
from dynamo_router.indexer.hashing import sequence_hashes

WORKERS = st.sampled_from([WorkerWithDpRank(w, r) for w in (1, 2) for r in (0, 1)])
PATHS = st.lists(st.integers(0, 1), max_size=9)


class ApproximateMachine(RuleBasedStateMachine):
    @initialize(
        ttl_s=st.sampled_from([0, 0.25, 1.0, 3.0]),
        max_blocks=st.sampled_from([1, 7, 20, 1000]),
        ratio=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    )
    def start(self, ttl_s, max_blocks, ratio):
        self.now = 0.0
        self.index = ApproximateIndex(ttl_s=ttl_s, max_blocks=max_blocks, prune_target_ratio=ratio)
        self.oracle = OracleApproximate(ttl_s, max_blocks, ratio)

    @rule(worker=WORKERS, path=PATHS)
    def record(self, worker, path):
        local = np.array(path, np.uint64)
        hashes = sequence_hashes(local)
        self.index.record(worker, local, hashes, self.now)
        self.oracle.record(worker, path, hashes.tolist(), self.now)

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.13, 1.0, 10.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        self.index.expire(self.now)
        self.oracle.expire(self.now)

    @rule(worker=WORKERS)
    def remove_worker(self, worker):
        self.index.unbind(worker)
        self.oracle.remove_worker(worker)

    @rule(path=PATHS, worker=WORKERS)
    def match(self, path, worker):
        local = np.array(path, np.uint64)
        scores = self.oracle.tree.match(path)
        assert self.index.scores(local) == scores
        self.index.bind(worker, 2)
        overlaps = np.full(4, 99, np.uint32)
        assert self.index.match(local, overlaps) == scores.get(worker, 0)
        assert overlaps.tolist() == [0, 0, scores.get(worker, 0), 0]
        self.index.bind(worker, 2**32 - 1)
        self.oracle.tree.held.setdefault(worker, {})

    @invariant()
    def agrees(self):
        check_integrity(self.index._predictions.tree)
        assert len(self.index) == len(self.oracle.deadlines)
        blocks = {source.worker: source.blocks for source in self.index.sources()}
        assert {w: b for w, b in blocks.items() if b} == {
            worker: len(held) for worker, held in self.oracle.tree.held.items() if held
        }


TestApproximateMachine = ApproximateMachine.TestCase
TestApproximateMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
