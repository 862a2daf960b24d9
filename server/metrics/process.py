"""What Prometheus sees of the process: its resources, its servers, its log, its version."""

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import grpc
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ...base.package_version import package_version
from ...process.logs import LogOutput
from ...process.off_loop import OffLoop
from ..record import OUTCOMES, Recorder
from .families import counter_by, counters, gauge_by, gauges, source

# Fields of /proc/self/stat behind the process's name, as proc(5) counts them from 3 on.
_UTIME, _STIME, _THREADS, _STARTED, _VSIZE, _RSS = 11, 12, 17, 19, 20, 21


def process_metrics() -> Iterator[Metric]:
    """Standard names for CPU, memory, files and threads; nothing where there is no /proc.

    prometheus_client's own collector knows no threads, and fails where files are not limited.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            stat = file.read().rpartition(b")")[2].split()
        with open("/proc/stat", "rb") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    except OSError:
        return
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    yield from counters(
        "process_",
        (
            "cpu_seconds",
            "CPU time of user and system.",
            (int(stat[_UTIME]) + int(stat[_STIME])) / ticks,
        ),
    )
    yield from gauges(
        "process_",
        ("resident_memory_bytes", "Memory in RAM.", int(stat[_RSS]) * page),
        ("virtual_memory_bytes", "Address space.", int(stat[_VSIZE])),
        ("start_time_seconds", "Start, in Unix time.", boot + int(stat[_STARTED]) / ticks),
        ("threads", "Threads.", int(stat[_THREADS])),
        ("open_fds", "Open file descriptors.", len(os.listdir("/proc/self/fd"))),
        ("max_fds", "Most file descriptors; +Inf: no limit.", _max_files()),
    )


def build_metrics() -> Iterable[Metric]:
    """Which build runs: the value is 1."""
    family = GaugeMetricFamily(
        "dynamo_router_build_info",
        "1, with the version, interpreter and gRPC library as labels.",
        labels=["version", "python", "grpc"],
    )
    grpc_version = str(vars(grpc).get("__version__", "unknown"))
    family.add_metric([package_version(), platform.python_version(), grpc_version], 1)
    return (family,)


@source
def log_metrics(log: LogOutput | None) -> Iterator[Metric]:
    """Lines that are not in the log; without one of ours there are none."""
    yield counter_by(
        "reason",
        "dynamo_router_log_lines_lost",
        "Lines left out of the log. reason: rate_limit (too many of one event) or slow_reader.",
        {
            "rate_limit": log.rate.suppressed if log else 0,
            "slow_reader": log.writer.dropped if log else 0,
        },
    )


@source
def record_metrics(recorder: Recorder) -> Iterator[Metric]:
    """What became of the lines of the record of requests."""
    yield counter_by(
        "outcome",
        "dynamo_router_record_lines",
        "Requests by what became of their line in the record: written, queue_full, disk_error,"
        " or failed where none could be made. Only with --record.",
        {outcome: recorder.lines[outcome] for outcome in OUTCOMES},
    )
    yield from counters(
        "dynamo_router_",
        ("record_bytes", "Bytes written to the record. Only with --record.", recorder.bytes),
    )


@source
def server_metrics(
    calls: Callable[[], Mapping[str, int]], connections: Callable[[], int]
) -> Iterator[Metric]:
    """What callers have open at our servers: gRPC calls by what they ask for, HTTP connections."""
    yield gauge_by("kind", "dynamo_router_open_calls", "gRPC calls, by what they ask for.", calls())
    yield from gauges(
        "dynamo_router_",
        ("http_connections", "Connections to the HTTP server.", connections()),
    )


@source
def off_loop_metrics(off_loop: OffLoop) -> Iterator[Metric]:
    """Long computations beside the event loop."""
    yield from counters(
        "dynamo_router_off_loop_",
        (
            "runs",
            "Long computations, such as texts tokenized, beside the event loop.",
            off_loop.runs,
        ),
        (
            "dropped",
            "Computations not begun, as their client had left.",
            off_loop.dropped,
        ),
    )
    yield from gauges(
        "dynamo_router_off_loop_",
        ("waiting", "Computations that wait or run.", off_loop.waiting),
        ("waiting_bytes", "Bytes of their requests.", off_loop.waiting_bytes),
    )


def _max_files() -> float:
    import resource  # not everywhere

    soft: Any = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return float("inf") if soft == resource.RLIM_INFINITY else soft
