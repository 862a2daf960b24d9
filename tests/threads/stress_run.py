"""Runs the stress program of rwlock_stress.pyx in its own process; prints what it saw as JSON.

python stress_run.py BUILD_DIR SHARED(0|1) STEPS READERS SEED

SHARED 1: through the index's lock; 0: through a plain mutex, which must do as well.
"""

import json
import random
import sys
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from oracles.tree import OracleTree

WORKERS = 8
TREE_WORKERS = WORKERS - 2  # the last two only hand a chain to and fro


def make_chains(rng):
    """Chains that branch off each other, long ones and short ones; the last is on its own."""
    chains = [[rng.getrandbits(40) for _ in range(300)]]
    for _ in range(9):
        trunk = rng.choice(chains)
        fork = rng.randrange(len(trunk))
        chains.append(trunk[:fork] + [rng.getrandbits(40) for _ in range(rng.randint(1, 200))])
    chains.append([rng.getrandbits(40) for _ in range(40)])
    return chains


def chained_hashes(chain):
    hashes, external_hash = [], 0
    for local in chain:
        external_hash = hash((external_hash, local)) & (2**63 - 1)
        hashes.append(external_hash)
    return hashes


def make_steps(rng, chains, count):
    """(kind, worker, chain, begin, end, other) and the truth after each, by the oracle."""
    hashes = [chained_hashes(chain) for chain in chains]
    last, pair = len(chains) - 1, [WORKERS - 1, WORKERS - 2]
    oracle = OracleTree()
    steps, truth = [], []

    def note():
        for chain in chains:
            scores = oracle.match(chain)
            truth.extend(scores.get((w, 0), 0) for w in range(WORKERS))

    note()
    for i in range(count):
        worker, c = rng.randrange(TREE_WORKERS), rng.randrange(last)
        n = len(chains[c])
        act = rng.random()
        if i == 0:
            steps.append((0, pair[1], last, 0, len(chains[last]), 0))
            oracle.store((pair[1], 0), None, hashes[last], chains[last])
        elif act < 0.1:
            giver, taker = pair[::1] if (pair[0], 0) in oracle.match(chains[last]) else pair[::-1]
            steps.append((3, giver, last, 0, len(chains[last]), taker))
            oracle.clear((giver, 0))
            oracle.store((taker, 0), None, hashes[last], chains[last])
        elif act < 0.6:
            end = rng.randint(1, n)
            steps.append((0, worker, c, 0, end, 0))
            oracle.store((worker, 0), None, hashes[c][:end], chains[c][:end])
        elif act < 0.93:
            begin = rng.randrange(n)
            end = rng.randint(begin, n)
            steps.append((1, worker, c, begin, end, rng.randrange(2)))
            held = oracle.held.get((worker, 0), {})
            oracle.remove(
                (worker, 0),
                [external_hash for external_hash in hashes[c][begin:end] if external_hash in held],
            )
        else:
            steps.append((2, worker, 0, 0, 0, 0))
            oracle.clear((worker, 0))
        note()
    return hashes, steps, truth, oracle


def main(build, shared, count, readers, seed):
    sys.path.insert(0, build)
    import rwlock_stress

    rng = random.Random(seed)
    chains = make_chains(rng)
    hashes, steps, truth, oracle = make_steps(rng, chains, count)
    starts = array("I", [0])
    for chain in chains:
        starts.append(starts[-1] + len(chain))
    seen = rwlock_stress.run(
        array("Q", [local for chain in chains for local in chain]),
        array("Q", [external_hash for some in hashes for external_hash in some]),
        array("Q", [external_hash for some in hashes for external_hash in reversed(some)]),
        starts,
        array("I", [number for step in steps for number in step]),
        array("H", truth),
        WORKERS,
        readers,
        shared,
    )
    print(json.dumps({**seen, "blocks_of_oracle": oracle.size()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "1", *map(int, sys.argv[3:]))
