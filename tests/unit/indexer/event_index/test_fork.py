"""A child made by fork: its index is closed and empty, and neither using nor dropping it hangs."""

import subprocess
import sys

import pytest

SCRIPT = """
import gc, os, signal, sys, time
import numpy as np
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.wire import encode_router_event
from dynamo_router.indexer.wire import Removed, RouterEvent, Stored, StoredBlock
from dynamo_router.base.identity import WorkerWithDpRank

W = WorkerWithDpRank(7)
FIRST = encode_router_event(RouterEvent(W, 1, Stored(None, [StoredBlock(1, 10)])))
MANY = list(range(2**63, 2**63 + 20_000))
LONG = encode_router_event(RouterEvent(WorkerWithDpRank(8), 1, Removed(MANY)))
chain = np.array([10], np.uint64)
out = np.zeros(1, np.uint32)


def use(index):
    assert not index.post(FIRST)
    index.flush()
    assert index.scores(chain) == {} and index.match(chain, out) == 0
    assert index.sources() == [] and index.counters()["waiting"] == 0
    index.apply(FIRST)
    index.bind(W, 0)
    index.unbind(W)
    index.close()


def child(what, index):
    if what == "use":
        use(index)
    if what != "exit":
        del index
        gc.collect()
    sys.exit(0)


def fork(what, index):
    pid = os.fork()
    if pid == 0:
        child(what, index)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0, f"the child ended with {status}"
            return
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise SystemExit("the child did not end")


what, busy = sys.argv[1], sys.argv[2] == "busy"
index = EventIndex()
index.apply(FIRST)
index.bind(W, 0)
for _ in range(8 if busy else 1):
    for _ in range(50 if busy else 0):
        index.post(LONG)
    fork(what, index)
assert index.match(chain, out) == 1 and index.post(FIRST), "the parent's index is as it was"
index.flush()
index.close()
"""


@pytest.mark.parametrize("busy", ["idle", "busy"])
@pytest.mark.parametrize("what", ["exit", "drop", "use"])
def test_a_forked_child_ends(what: str, busy: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, what, busy]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
