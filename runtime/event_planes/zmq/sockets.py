"""The sockets of the plane: an Outlet for each publisher, an Inlet for each channel subscribed to.

They are read and written on the event loop without a task of their own.
"""

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ....base.backoff import Backoff
from ....base.urls import joined
from .connection_monitor import RENEW_S, Connection, ConnectionMonitor
from .multipart import FRAMES, MOST_BYTES, encode_multipart

MOST_QUEUED = 4096
"""Messages that wait in a socket, at each end; beyond, its publisher drops them."""
MOST_SOCKETS = 65_536
LINGER_MS = 200
"""How long a socket that is closed goes on sending what it has."""
AT_ONCE = 64
"""Messages read from a socket until others have their turn."""
DOUBT_S = 0.5
"""As RENEW_S, up to which it doubles, where something came that is none of its messages, and no
good one behind it: bytes of another peer may have put the connection out of step."""
PING_MS, PONG_MS = 1500, 2500
"""How often a publisher is pinged, some 12 us of CPU at each end, and how long it may take to
answer, or for one message."""
MOST_SPARE_FRAMES = 64
"""Frames of a message beyond those it should have that are read away; then its socket is closed."""


def import_zmq() -> Any:
    """The library, which is imported by its first user."""
    return importlib.import_module("zmq")


def new_context() -> Any:
    """What sockets are made in."""
    zmq = import_zmq()
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
    return context


class Outlet:
    """A publisher's socket. `address` is where others reach it."""

    def __init__(self, context: Any, host: str, advertised: str) -> None:
        """OSError if there can be no socket, or none that listens on `host`."""
        zmq = import_zmq()
        self._socket = _socket(context, zmq.PUB)
        self._noblock = zmq.NOBLOCK
        for option, value in (
            (zmq.SNDHWM, MOST_QUEUED),
            (zmq.LINGER, LINGER_MS),
            (zmq.IPV6, 1),
        ):
            self._socket.setsockopt(option, value)
        _placed(self._socket, self._socket.bind, f"tcp://{joined(host, '*')}")
        port = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        self.address = f"tcp://{joined(advertised, port)}"
        self.sequences: dict[str, int] = {}  # by topic, where messages have no number of their own

    def send(self, topic: str, publisher_id: int, sequence: int, payload: bytes) -> None:
        """ValueError for what is too long. What subscribers are too slow for is dropped."""
        frames = encode_multipart(topic, publisher_id, sequence, payload)
        self._socket.send_multipart(frames, self._noblock)

    def close(self) -> None:
        self._socket.close(LINGER_MS)


class Inlet:
    """A subscription to one topic at one address, from its making to `close`.

    `on_frames` gets each message, and says whether it is a good one; `on_garbled` is called for one
    with too many frames. The library connects again by itself where a connection is lost or nothing
    answers, but not where something came that is no ZMQ, or that looks like it: then we do.
    """

    def __init__(
        self,
        context: Any,
        address: str,
        topic: str,
        on_frames: Callable[[Sequence[bytes]], bool],
        on_garbled: Callable[[], None],
    ) -> None:
        """OSError if there can be no socket, or none to such an address."""
        zmq = self._zmq = import_zmq()
        self._address = address
        self._on_frames, self._on_garbled = on_frames, on_garbled
        self._loop = asyncio.get_running_loop()
        self._doubts = Backoff(min(DOUBT_S, RENEW_S), RENEW_S)
        # An XSUB shows what is on no topic of ours, too, and so that it is out of step.
        self._socket = _socket(context, zmq.XSUB)
        for option, value in (
            (zmq.RCVHWM, MOST_QUEUED),
            (zmq.MAXMSGSIZE, MOST_BYTES + 1024),
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 2000),
            (zmq.HEARTBEAT_IVL, PING_MS),
            (zmq.HEARTBEAT_TIMEOUT, PONG_MS),
        ):
            self._socket.setsockopt(option, value)
        self._socket.send(b"\x01" + topic.encode())  # subscribes
        self._monitor = _placed(self._socket, partial(ConnectionMonitor, context), self._socket)
        try:
            _placed(self._socket, self._socket.connect, address)
        except OSError:
            self._monitor.close()
            raise
        self._renewal: asyncio.TimerHandle | None = None  # until it is connected anew
        self._connected = False
        self._doubted = False  # it was lost, or a message refused, and no valid one came since
        self._renew_in(RENEW_S)
        self._fds = [self._socket.getsockopt(zmq.FD), self._monitor.fd]
        self._again: asyncio.Handle | None = None
        for fd, read in zip(self._fds, (self._read, self._look), strict=True):
            self._loop.add_reader(fd, read)
        self._again = self._loop.call_soon(self._read)  # the descriptor shows changes alone
        self._loop.call_soon(self._look)

    @property
    def closed(self) -> bool:
        return bool(self._socket.closed)

    def close(self) -> None:
        """Idempotent."""
        if not self._socket.closed:
            if self._again is not None:
                self._again.cancel()
            self._renew_in(None)
            for fd in self._fds:
                self._loop.remove_reader(fd)
            self._monitor.close()
            self._socket.close(0)

    def _look(self) -> None:
        """Take in what became of the connection until now."""
        for news in () if self._socket.closed else self._monitor.news():
            self._connected = news is Connection.MADE
            if news is Connection.LOST:
                self._doubted = True
                self._renew_in(self._doubts.next())
            else:
                self._renew_in(None if self._connected else RENEW_S)

    def _renew_in(self, seconds: float | None) -> None:
        """Connect anew then, unless something else becomes of it; None: it is connected."""
        if self._renewal is not None:
            self._renewal.cancel()
        later = self._loop.call_later
        self._renewal = None if seconds is None else later(seconds, self._renew)

    def _renew(self) -> None:
        """Try again, with what is queued here kept."""
        self._connected = False
        self._renew_in(RENEW_S)
        with contextlib.suppress(self._zmq.ZMQError):  # of a connection that was given up
            self._socket.disconnect(self._address)
        self._socket.connect(self._address)

    def _believe(self) -> None:
        """A good message came. Perhaps before the connection was lost."""
        self._doubted = False
        self._doubts.reset()
        if self._connected:
            self._renew_in(None)

    def _read(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        for _ in range(AT_ONCE):
            if self._socket.closed:
                return
            try:
                frames = self._receive()
            except self._zmq.Again:
                return
            if frames is None:
                self._on_garbled()
            elif self._on_frames(frames):
                if self._doubted:
                    self._believe()
                continue
            if self._socket.closed:  # by a handler of a message: nothing is to be made anew
                return
            self._doubted = True
            if self._renewal is None:
                self._renew_in(self._doubts.next())
        self._again = self._loop.call_soon(self._read)

    def _receive(self) -> list[bytes] | None:
        """The frames of a message; None if there are too many, and then perhaps no more messages:
        a publisher of more than can be read away is ignored from then on."""
        socket, more = self._socket, self._zmq.RCVMORE
        frames = [socket.recv(self._zmq.NOBLOCK)]
        while socket.getsockopt(more):
            frame = socket.recv(self._zmq.NOBLOCK)
            if len(frames) <= FRAMES:
                frames.append(frame)
            elif len(frames) > MOST_SPARE_FRAMES:
                self.close()
                return None
            else:
                frames.append(b"")
        return frames if len(frames) <= FRAMES else None


def _socket(context: Any, kind: int) -> Any:
    """OSError if there are too many."""
    try:
        return context.socket(kind)
    except import_zmq().ZMQError as error:
        raise OSError(error.errno, error.strerror) from None


def _placed(socket: Any, place: Callable[[Any], Any], where: object) -> Any:
    """Bind, connect or watch a socket; OSError, and it is closed, if that cannot be. A context does
    not end while one of its sockets is open."""
    try:
        return place(where)
    except import_zmq().ZMQError as error:
        socket.close(0)
        raise OSError(error.errno, f"{where}: {error.strerror}") from None
