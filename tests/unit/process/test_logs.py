"""Logging: what is written, what is left out and counted, and that nobody waits for a reader."""

import fcntl
import json
import logging
import os
from collections.abc import Iterator

import pytest
import structlog
from support.polling import wait_until

from dynamo_router.base.clock import ManualClock
from dynamo_router.process.logs import (
    BURST,
    MAX_LINE_BYTES,
    MAX_VALUE_CHARS,
    UNLIMITED,
    LineWriter,
    LogFormat,
    LogOutput,
    RateLimit,
    log_to_stderr,
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            pass


@pytest.fixture
def restored_logging() -> Iterator[None]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    config = structlog.get_config()
    yield
    structlog.configure(**config)
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def read_lines(descriptor: int) -> list[str]:
    os.set_blocking(descriptor, False)
    return os.read(descriptor, 1 << 20).decode().splitlines()


def test_lines_come_out_in_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing)
    for number in range(100):
        writer.write(f"line {number}")
    writer.close()
    assert read_lines(reading) == [f"line {number}" for number in range(100)]
    assert writer.dropped == 0


def test_a_reader_that_does_not_read_holds_nobody_up(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    capacity = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    writer = LineWriter(writing, max_lines=10)
    for _ in range(capacity // 100 + 100):
        writer.write("x" * 99)  # returns, whatever the pipe does
    assert writer.dropped > 0
    writer.close(timeout_s=0.01)
    while writer._thread.is_alive():  # let it go: the pipe is read after all
        os.read(reading, 1 << 16)


def test_a_reader_that_has_gone_is_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    writer = LineWriter(writing)
    writer.write("nobody reads this")
    writer.close()
    assert writer.dropped == 1
    writer.write("nor this")
    assert writer.dropped == 2


def test_a_long_line_is_cut(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(writing)
    writer.write("é" * MAX_LINE_BYTES)
    writer.close()
    os.set_blocking(reading, False)
    written = os.read(reading, 1 << 20)
    assert len(written) == MAX_LINE_BYTES + len(" [cut]\n")
    assert written.endswith(b" [cut]\n")


LONG = {
    "plain": "x" * (1 << 20),
    "unprintable": "\x1b\n" * (1 << 19),
    "astral": "\U0001f600\U000e0001" * (1 << 18),
    "no URL": "a" * (1 << 20) + "@ ://",
    "URLs": "@" + "a://" * (1 << 18),
}


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("text", LONG)
def test_a_megabyte_is_a_line_as_any_other(
    log_format: LogFormat, text: str, pipe: tuple[int, int], restored_logging: None
) -> None:
    """In JSON it can be read; no part of a password stands before a cut."""
    reading, writing = pipe
    output = log_to_stderr("debug", log_format, descriptor=writing)
    log = structlog.get_logger()
    log.info("event", value=LONG[text], nested=[LONG[text]], number=7)
    log.info("event", **{f"value{n}": LONG[text] for n in range(9)})
    log.info(LONG[text])
    secret = "sk-S3CRET" * 20
    log.info("event", value="x" * (MAX_VALUE_CHARS - 60) + f" nats://user:{secret}@host")
    output.close()
    lines = read_lines(reading)
    assert len(lines) == 4
    for line in lines:
        assert line.isprintable() and len(line.encode()) <= MAX_LINE_BYTES + len(" [cut]")
        assert "[cut]" in line or text == "plain", line
        if log_format == "json":
            assert json.loads(line)["level"] == "info"
    assert "S3CRET" not in lines[-1] and "user:***@" in lines[-1]


def log_once(rate: RateLimit, event: str) -> dict[str, object] | None:
    try:
        return dict(rate(None, "warning", {"event": event}))
    except structlog.DropEvent:
        return None


def test_one_event_is_limited_and_its_next_line_tells_how_many_were_left_out() -> None:
    clock = ManualClock()
    rate = RateLimit(clock, burst=2, period_s=1.0)
    assert [log_once(rate, "a") is not None for _ in range(5)] == [True, True, False, False, False]
    assert log_once(rate, "b") == {"event": "b"}  # another event has a rate of its own
    assert rate.suppressed == 3
    clock.advance(1.0)
    assert log_once(rate, "a") == {"event": "a", "suppressed": 3}
    assert log_once(rate, "a") == {"event": "a"}
    assert log_once(rate, "a") is None


def test_the_number_of_watched_events_is_bounded() -> None:
    rate = RateLimit(ManualClock(), burst=1, max_events=3)
    for number in range(100):
        assert log_once(rate, f"event {number}") is not None
    assert len(rate._rates) == 3
    assert log_once(rate, "event 99") is None


def open_log(writing: int, log_format: str) -> LogOutput:
    return log_to_stderr("info", log_format, descriptor=writing)  # type: ignore[arg-type]


def test_json_lines_have_level_time_event_and_values(
    pipe: tuple[int, int], restored_logging: None
) -> None:
    reading, writing = pipe
    output = open_log(writing, "json")
    log = structlog.get_logger("here")
    log.warning("worker lost", worker_id=7, address="127.0.0.1:1\n2")
    log.debug("not this")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    logging.getLogger("aiohttp").error("from the %s", "library")
    output.close()
    lost, failed, library = map(json.loads, read_lines(reading))
    assert (lost["level"], lost["event"], lost["worker_id"]) == ("warning", "worker lost", 7)
    assert lost["address"] == "127.0.0.1:1\n2" and lost["timestamp"].endswith("Z")
    assert "ValueError: broken" in failed["exception"]
    assert (library["event"], library["logger"]) == ("from the library", "aiohttp")
    assert output.lost == 0


def test_text_lines_are_for_people(pipe: tuple[int, int], restored_logging: None) -> None:
    reading, writing = pipe
    output = open_log(writing, "text")
    structlog.get_logger("here").info("ready", port=1)
    output.close()
    (line,) = read_lines(reading)
    assert "ready" in line and "port=1" in line and "\x1b" not in line


def test_a_burst_that_nothing_follows_is_told_of_all_the_same(
    pipe: tuple[int, int], restored_logging: None
) -> None:
    reading, writing = pipe
    clock = ManualClock()
    output = log_to_stderr("info", "json", descriptor=writing, clock=clock)
    log = structlog.get_logger("here")
    for number in range(BURST + 7):
        log.warning("request failed", request_id=str(number))
    lines: list[dict[str, object]] = []

    def told() -> bool:
        try:
            lines.extend(map(json.loads, read_lines(reading)))
        except BlockingIOError:
            clock.advance(0.5)
            output.writer.wake()
        return len(lines) > BURST

    wait_until(told)
    assert [line["request_id"] for line in lines[:BURST]] == [str(n) for n in range(BURST)]
    summary = lines[BURST]
    assert (summary["event"], summary["of"]) == ("log lines left out", "request failed")
    assert (summary["suppressed"], summary["level"]) == (7, "warning")
    log.warning("request failed", request_id="next")
    for _ in range(BURST + 2):
        log.warning("request failed")
    output.close()
    rest = [json.loads(line) for line in read_lines(reading)]
    assert "suppressed" not in rest[0]  # it was told
    assert (rest[-1]["event"], rest[-1]["suppressed"]) == ("log lines left out", 3)
    assert output.rate.suppressed == 10


def test_the_thread_asks_its_alarm_when_it_is_due(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    asked: list[None] = []

    def alarm() -> float | None:
        asked.append(None)
        return 0.001 if len(asked) < 3 else None

    writer = LineWriter(writing)
    writer.alarm = alarm
    writer.wake()
    wait_until(lambda: len(asked) == 3)
    writer.close()
    assert len(asked) == 3


def test_an_event_that_is_unlimited_loses_no_line() -> None:
    rate = RateLimit(ManualClock(), burst=1)
    for _ in range(100):
        event = rate(None, "info", {"event": "request ended", UNLIMITED: True})
        assert event == {"event": "request ended"}
    assert rate.suppressed == 0


FORGED = [
    "x\n2026-01-01T00:00:00 [info     ] worker ready",
    "x\r[info     ] worker ready",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b2J",
    "a\u2028b\u2029c\x85d\x0be\x0cf\x1c",
    "\u202egnp.exe\u2066\u200f\u061c",
    "a\x00b\x7fc",
    "\ud800",
    "\ufeff\U000e0001",
]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("text", FORGED)
def test_what_a_peer_says_is_no_line_of_its_own(
    log_format: LogFormat, text: str, pipe: tuple[int, int], restored_logging: None
) -> None:
    """Wherever it stands in a line: as the event, a value, a name, in a list, an error, a log of
    the standard library or a traceback."""
    reading, writing = pipe
    output = log_to_stderr("debug", log_format, descriptor=writing)
    log = structlog.get_logger()
    log.info(text)
    log.info("event", value=text, nested=[text, {"a": text}], error=ValueError(text))
    log.info("event", raw=text.encode("utf-8", "surrogatepass"))
    logging.getLogger("peer").warning("said %s", text)
    try:
        raise ValueError(text)
    except ValueError as error:
        log.error("failed", exc_info=error)
    output.close()
    os.set_blocking(reading, False)
    written = os.read(reading, 1 << 20).decode()
    lines = written.rstrip("\n").split("\n")
    assert all(line.isprintable() for line in lines), written
    own = [line for line in lines if not line.startswith(" ")]
    assert len(own) == 5 and not any(line.startswith("2026-01-01") for line in own), written


def test_text_that_is_only_unusual_is_left_as_it_is(
    pipe: tuple[int, int], restored_logging: None
) -> None:
    reading, writing = pipe
    output = log_to_stderr("info", descriptor=writing)
    structlog.get_logger().info("begun", model="モデル-é-🙂", path="C:\\a", n=3, none=None)
    output.close()
    (line,) = read_lines(reading)
    assert "model=モデル-é-🙂" in line and "path=C:\\a" in line and "n=3" in line
