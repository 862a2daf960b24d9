"""Acceptor: the listening sockets of a server, and the connections that wait at them.

The servers of uvloop accept one connection in a turn of the event loop: when many come at once, or
turns are long, a newcomer waits behind all of them, and what finds no room in the kernel's queue
tries again after one second, then two more. Here a turn takes up to ACCEPTED_AT_ONCE.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from ..process.system import addresses_to_listen

BACKLOG = 4096
"""Connections that wait in the kernel, as far as it lets us."""
ACCEPTED_AT_ONCE = 32
"""Some 3 ms of work at most."""
UNSENT_BYTES = 128 << 10
"""Of one connection, in the kernel: where its client does not read, the rest waits where it is
made. It would be up to 4 MiB, and as many messages of engines. What is under way is not bounded."""
ACCEPT_AGAIN_S = 0.5
"""When there was no descriptor left for a connection."""
_UNSENT_OPTION = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Accepted = Callable[[socket.socket, str], None]
"""Takes a connection, not blocking, and the host that it comes from; it must close the socket, or
have it closed."""


class Acceptor:
    """Takes ports by `bind`, and hands over what connects from `start` until `close`."""

    def __init__(
        self, accepted: Accepted, on_no_descriptors: Callable[[OSError], None] = lambda error: None
    ) -> None:
        """`on_no_descriptors` is called when a connection has to wait for lack of them."""
        self._accepted, self._on_no_descriptors = accepted, on_no_descriptors
        self._sockets: list[socket.socket] = []
        self._again: dict[socket.socket, asyncio.TimerHandle] = {}

    def bind(self, host: str, port: int, *, shared: bool = False) -> int:
        """Take the port, of all addresses of a name; 0 takes a free one. OSError if it cannot, and
        then none that was taken before is kept.

        `shared`: with other processes of this user, which get a part of the connections each.
        """
        found = addresses_to_listen(host, port)
        missing: OSError | None = None
        before = len(self._sockets)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                port = self._listen(socket.socket(family, kind, protocol), address, port, shared)
            except OSError as error:
                # As `localhost` has ::1 where there is no IPv6.
                if family == socket.AF_INET6 and error.errno in _NO_FAMILY:
                    missing = error
                    continue
                self.close()
                raise
        if missing is not None and len(self._sockets) == before:
            raise missing
        return port

    def _listen(
        self, listener: socket.socket, address: tuple[Any, ...], port: int, shared: bool
    ) -> int:
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if listener.family == socket.AF_INET6:
                every = address[0] == "::"  # of IPv4 too
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if every else 1)
            listener.bind((address[0], port, *address[2:]))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        self._sockets.append(listener)
        return int(listener.getsockname()[1])

    def bind_unix(self, path: str) -> None:
        """Listen on a Unix socket, for processes of this user alone. OSError if it cannot."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(path)
            os.chmod(path, 0o600)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        self._sockets.append(listener)

    def start(self) -> None:
        """Accept, on the running loop, at what is bound now. Idempotent."""
        for listener in self._sockets:
            self._accept_on(listener)

    async def accept_waiting(self, most_s: float) -> None:
        """Accept what has connected, in turns of the loop, for at most `most_s`: before `close`,
        which breaks it off."""
        loop = asyncio.get_running_loop()
        until = loop.time() + most_s
        while any([self._accept(listener) for listener in self._sockets]) and loop.time() < until:
            await asyncio.sleep(0)

    def close(self) -> None:
        """Listen no more. Idempotent."""
        for timer in self._again.values():
            timer.cancel()
        self._again.clear()
        for listener in self._sockets:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._sockets.clear()

    def _accept_on(self, listener: socket.socket) -> None:
        self._again.pop(listener, None)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> bool:
        """Whether more may wait than a turn has taken."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._wait(listener)
                self._on_no_descriptors(error)
                return False
            try:
                connection.setblocking(False)
                if _UNSENT_OPTION is not None and connection.family != socket.AF_UNIX:
                    connection.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, UNSENT_BYTES)
                self._accepted(connection, str(address[0]) if address else "unix")
            except BaseException:
                connection.close()  # else its client waits until a collector finds it
                raise
        return True

    def _wait(self, listener: socket.socket) -> None:
        """Until there are descriptors again."""
        if listener not in self._again:
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            self._again[listener] = loop.call_later(ACCEPT_AGAIN_S, self._accept_on, listener)
