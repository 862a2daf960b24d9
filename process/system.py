"""What a serving process asks of its operating system: open files, its address, signals to stop."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from ..base.errors import ConfigError
from ..base.urls import WILDCARDS

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def reachable_host(host: str) -> str:
    """The address under which others reach a server that listens on `host`. ConfigError if that is
    everywhere, and this machine's name has no address."""
    if host not in WILDCARDS:
        return host
    name = socket.gethostname()
    family = socket.AF_INET if host == "0.0.0.0" else socket.AF_UNSPEC
    try:
        found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a part of the name is longer than names may have
        why = error.strerror if isinstance(error, OSError) else str(error)
        text = f"host: {host} is every address, and our name {name!r} has none: {why}"
        raise ConfigError(text, key="host") from None
    # What listens on all of IPv6 listens on IPv4 too, which more peers reach.
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def allow_open_files(wanted: int) -> int:
    """Raise our own limit towards `wanted`, as far as we may; the limit that holds then."""
    if sys.platform == "win32":
        return wanted  # there is no such limit
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    soft = wanted if hard == resource.RLIM_INFINITY else max(soft, min(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


Addresses = Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]]


def addresses_to_listen(host: str, port: int) -> Addresses:
    """As `socket.getaddrinfo` has them, for a server. OSError if the host has none, also where it
    can be no name, as a part of it is empty or too long."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "it is no address or known name") from None


def why_cannot_listen(host: str, port: int) -> tuple[str, str]:
    """After listening there failed: which setting is at fault, host or port, and why."""
    try:
        found = addresses_to_listen(host, port)
    except OSError:
        return "host", "it is no address or known name"
    family, kind, protocol, _, address = found[0]
    try:
        with socket.socket(family, kind, protocol) as attempt:
            attempt.bind(address)
    except OSError as error:
        key = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
        return key, error.strerror or str(error)
    return "port", "is it in use?"


def open_files() -> tuple[int, int]:
    """(how many files of ours are open, how many may be)."""
    if sys.platform == "win32":
        return 0, 1 << 16  # there is no such limit
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        in_use = len(os.listdir("/dev/fd"))
    except OSError:
        in_use = 64
    return in_use, 1 << 16 if soft == resource.RLIM_INFINITY else soft


class StopSignals:
    """SIGINT and SIGTERM on the running loop, while entered: the first asks to drain, the next to
    end at once.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.drain = asyncio.Event()
        self.end = asyncio.Event()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(self, *error: object) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        self.first = self.first or number
        (self.end if self.drain.is_set() else self.drain).set()


@contextmanager
def on_hangup(call: Callable[[], None]) -> Iterator[None]:
    """Call this on each SIGHUP, on the running loop, while entered. Nothing where there is none."""
    number = getattr(signal, "SIGHUP", None)
    loop = asyncio.get_running_loop()
    if number is not None:
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        if number is not None:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # it does not end what is being ended anyway


async def run_until(task: "asyncio.Task[None]", event: asyncio.Event) -> None:
    """Wait for a task, and cancel it if the event comes first. The task's error is raised."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task, waiting})
    if not task.cancelled():
        task.result()
