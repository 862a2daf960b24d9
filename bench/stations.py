"""The stations of a prompt that goes through the prefill queue, recorded where they happen.

    python -m dynamo_router.bench.stations FILE serve|mocker ...

is `dynamo-router serve|mocker ...`, and writes down each call of a place that STATIONS names: when,
and in which file the code is that the interpreter runs. Times are CLOCK_MONOTONIC, which the
processes of a host share.
"""

import functools
import importlib
import inspect
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from ..base.errors import RouterError

ROUTER, DECODE, PREFILL = ROLES = ("router", "decode", "prefill")
"""The processes."""
RECORDED = __spec__.name
"""The module that is a recorded command line."""
_PACKAGE = (__package__ or "").partition(".")[0]
_ROOT = Path(__file__).parents[1]


class Place(NamedTuple):
    """A function of ours that a station runs."""

    role: str
    file: str
    """from the top of the checkout; with a brace where the way of blocks decides"""
    function: str
    """qualified"""

    def at(self, transfer: str) -> "Place":
        """With this way of blocks (see TransferConfig)."""
        way = {"kind": transfer, "Kind": transfer.capitalize()}
        return self._replace(file=self.file.format_map(way), function=self.function.format_map(way))


class Station(NamedTuple):
    name: str
    word: str
    places: tuple[Place, ...]
    """in the order in which they are run"""


def _station(name: str, word: str, *places: tuple[str, str, str]) -> Station:
    return Station(name, word, tuple(Place(*place) for place in places))


STATIONS = (
    _station(
        "S1", "request",
        (ROUTER, "server/dispatch/dispatch.py", "Dispatcher.generate"),
    ),
    _station(
        "S2", "route",
        (ROUTER, "server/handoff/handoffs.py", "Handoffs.decide_pair"),
        (ROUTER, "router/kv_router.py", "KvRouter.place_pair"),
        (ROUTER, "router/pairs.py", "choose_pair"),
    ),
    _station(
        "S3", "dispatch",
        (ROUTER, "workers/handoffs/queue_hint.py", "RemotePrefillHint.encode"),
        (ROUTER, "server/handoff/queued.py", "QueuedCall.__init__"),
    ),
    _station(
        "S4", "prefix hits",
        (DECODE, "engines/mocker/queued_prefills.py", "EngineQueue.divided"),
        (DECODE, "engines/mocker/engine.py", "MockEngine.uncached_tokens"),
    ),
    _station(
        "S5", "decide",
        (DECODE, "engines/prefill_queue/thresholds.py", "PrefillThresholds.is_short"),
        (DECODE, "runtime/work_queues/work_queue.py", "WorkQueue.messages"),
        (DECODE, "engines/prefill_queue/thresholds.py", "PrefillThresholds.is_full"),
    ),
    _station(
        "S6", "allocate",
        (DECODE, "engines/mocker/live.py", "LiveEngine._bring"),
        (DECODE, "engines/transfer/grants.py", "BlockGrants.allocate"),
    ),
    _station(
        "S7", "queue",
        (DECODE, "engines/prefill_queue/remote_prefills.py", "RemotePrefills.prefill"),
        (DECODE, "runtime/work_queues/work_queue.py", "WorkQueue.publish"),
    ),
    _station(
        "S8", "pull",
        (PREFILL, "runtime/work_queues/group_reader.py", "GroupReader._on_message"),
        (PREFILL, "engines/prefill_queue/consumer.py", "PrefillConsumer._handle"),
    ),
    _station(
        "S9", "metadata",
        (PREFILL, "engines/prefill_queue/consumer.py", "PrefillConsumer._take"),
        (DECODE, "engines/prefill_queue/remote_prefills.py", "RemotePrefills._take"),
        (DECODE, "engines/transfer/grants.py", "BlockGrants.grant"),
    ),
    _station(
        "S10", "prefill",
        (PREFILL, "engines/mocker/queued_prefills.py", "_Computer.compute"),
        (PREFILL, "engines/mocker/engine.py", "MockEngine.submit"),
    ),
    _station(
        "S11", "write",
        (PREFILL, "engines/transfer/metadata.py", "read_metadata"),
        (PREFILL, "engines/transfer/{kind}.py", "{Kind}Transfer.write"),
    ),
    _station(
        "S12", "notify",
        (DECODE, "engines/prefill_queue/remote_prefills.py", "RemotePrefills.on_notification"),
        (DECODE, "engines/transfer/grants.py", "BlockGrants.land"),
        (PREFILL, "runtime/work_queues/deliveries.py", "Delivery.ack"),
    ),
    _station(
        "S13", "decode",
        (DECODE, "engines/mocker/engine.py", "MockEngine.arrive"),
        (DECODE, "engines/mocker/contents.py", "CacheContents.check"),
        (DECODE, "engines/mocker/live.py", "TokenStream.advance"),
    ),
)  # fmt: skip
"""The design documents' own, S1 to S13."""


class Call(msgspec.Struct, frozen=True):
    """One call of a place."""

    file: str
    """of the code that ran, from the top of the checkout"""
    function: str
    at_s: float
    """CLOCK_MONOTONIC"""
    pid: int


class Passed(NamedTuple):
    """A place that one prompt has passed."""

    station: Station
    place: Place
    at_s: float
    pid: int


class NotPassedError(RouterError):
    """A prompt has not been at a station, as far as was recorded."""


def record(path: str, roles: Iterable[str]) -> None:
    """From now on, append each call in this process of a place of these roles to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    places = {
        (place.file, place.function)
        for station in STATIONS
        for transfer in ("shm", "nixl")
        for place in (each.at(transfer) for each in station.places)
        if place.role in roles
    }
    for name, function in sorted(places):
        owner, attribute = owner_of(name, function)
        original = getattr(owner, attribute)
        recorded = _recorded(original, file)
        setattr(owner, attribute, recorded)
        for module in [each for key, each in sys.modules.items() if key.startswith(_PACKAGE)]:
            if getattr(module, attribute, None) is original:  # `from ... import` it
                setattr(module, attribute, recorded)


def owner_of(file: str, function: str) -> tuple[Any, str]:
    """The class or module that has a function, and its name there. AttributeError, ImportError."""
    module = f"{_PACKAGE}.{file.removesuffix('.py').replace('/', '.')}"
    *path, name = function.split(".")
    return functools.reduce(getattr, path, importlib.import_module(module)), name


def _recorded(function: Callable[..., Any], file: int) -> Callable[..., Any]:
    code = inspect.unwrap(function).__code__
    path = Path(code.co_filename).relative_to(_ROOT).as_posix()

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        line = Call(path, code.co_qualname, monotonic(), os.getpid())
        os.write(file, msgspec.json.encode(line) + b"\n")
        return function(*args, **named)

    return call


def read_calls(path: Path) -> list[Call]:
    """Those that were recorded so far, in their order."""
    if not path.exists():
        return []  # its process has not begun
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [msgspec.json.decode(line, type=Call) for line in whole.splitlines()]


def way_of(calls: Mapping[str, list[Call]], since_s: float, transfer: str) -> list[Passed]:
    """The places that the one prompt has passed that was under way since then, station by station.

    `calls` are those of each role. A station begins after the one before has begun. NotPassedError
    if a place was not passed.
    """
    way: list[Passed] = []
    for station in STATIONS:
        began_s = at_s = since_s
        for number, place in enumerate(each.at(transfer) for each in station.places):
            for call in calls[place.role]:
                if (call.file, call.function) == place[1:] and call.at_s >= at_s:
                    break
            else:
                raise NotPassedError(f"{station.name}: no {place.function} in {place.role}")
            at_s = call.at_s
            began_s = began_s if number else at_s
            way.append(Passed(station, place, at_s, call.pid))
        since_s = began_s
    return way


def main() -> None:
    """The command line, recorded."""
    path, command, *rest = sys.argv[1:]
    record(path, (ROUTER,) if command == "serve" else (DECODE, PREFILL))
    sys.argv = [_PACKAGE, command, *rest]
    runpy.run_module(_PACKAGE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
