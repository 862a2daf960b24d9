"""The index's own thread beside those that post."""

import os

import pytest
from support.polling import wait_until

from dynamo_router.indexer.event_index.actor import EventIndex

THREADS = "/proc/self/task"


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the system has no such policy")
def test_it_takes_no_processor_from_a_thread_that_posts() -> None:
    before = set(os.listdir(THREADS))
    index = EventIndex()
    try:
        (its,) = set(os.listdir(THREADS)) - before
        wait_until(lambda: os.sched_getscheduler(int(its)) == os.SCHED_BATCH)
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        index.close()
