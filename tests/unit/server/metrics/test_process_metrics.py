"""What is told of the process, its log and its build."""

import os
import resource
import threading

import pytest
from prometheus_client.metrics_core import Metric
from support.polling import wait_until

from dynamo_router.base.clock import ManualClock
from dynamo_router.process.logs import LineWriter, LogOutput, RateLimit
from dynamo_router.server.metrics.process import build_metrics, log_metrics, process_metrics


def values(*families: Metric) -> dict[str, float]:
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_resources_are_those_of_this_process() -> None:
    told = values(*process_metrics())
    assert told["process_cpu_seconds_total"] > 0
    assert told["process_resident_memory_bytes"] > 1 << 20
    assert told["process_virtual_memory_bytes"] >= told["process_resident_memory_bytes"]
    assert told["process_start_time_seconds"] > 1e9


def test_files_and_threads_are_counted() -> None:
    # A thread, or a file, of an earlier test may end in between: then once more.
    wait_until(is_one_thread_and_two_files_more)


def is_one_thread_and_two_files_more() -> bool:
    told = values(*process_metrics())
    reading, writing = os.pipe()
    started, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (started.set(), end.wait()))
    thread.start()
    try:
        assert started.wait(15)
        more = values(*process_metrics())
    finally:
        end.set()
        thread.join()
        os.close(reading)
        os.close(writing)
    files = more["process_open_fds"] - told["process_open_fds"]
    threads = more["process_threads"] - told["process_threads"]
    return (files, threads) == (2, 1)


def test_an_unlimited_process_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: unlimited)
    assert values(*process_metrics())["process_max_fds"] == float("inf")


def test_a_build_has_a_name() -> None:
    (family,) = build_metrics()
    ((sample,),) = (family.samples,)
    assert sample.value == 1
    assert all(sample.labels.values()) and set(sample.labels) == {"version", "python", "grpc"}


def test_lines_that_are_not_in_the_log_are_counted() -> None:
    writer = LineWriter(2)
    writer.close()
    writer.write("too late")
    rate = RateLimit(ManualClock())
    rate.suppressed = 3
    (family,) = log_metrics(LogOutput(writer, rate))()
    by_reason = {sample.labels["reason"]: sample.value for sample in family.samples}
    assert by_reason == {"rate_limit": 3, "slow_reader": 1}
    (family,) = log_metrics(None)()
    assert {sample.value for sample in family.samples} == {0}
