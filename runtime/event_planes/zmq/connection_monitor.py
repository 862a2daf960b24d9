"""ConnectionMonitor: what becomes of a socket's connection to a publisher.

The library connects again by itself where a connection is lost, but not where something came that
is no ZMQ: then the subscriber does. Asked by the plane's inlets, and by
subscribers of engines' events.
"""

import enum
import importlib
from itertools import count
from typing import Any

RENEW_S = 3.0
"""How long a publisher may take to be connected until it is tried anew."""
_numbers = count()


class Connection(enum.Enum):
    """What became of one."""

    MADE = "made"
    LOST = "lost"
    TRIED = "tried"
    """it is not there, and the library tries again by itself"""


class ConnectionMonitor:
    """Watches a socket with one connection, from before that is made to `close`."""

    def __init__(self, context: Any, socket: Any) -> None:
        """ZMQError if there can be no socket for its news; then the watched one is to be closed,
        too."""
        zmq: Any = importlib.import_module("zmq")
        self._again, self._noblock = zmq.Again, zmq.NOBLOCK
        self._meanings = {
            zmq.EVENT_HANDSHAKE_SUCCEEDED: Connection.MADE,
            zmq.EVENT_DISCONNECTED: Connection.LOST,
            zmq.EVENT_CONNECT_RETRIED: Connection.TRIED,
        }
        self._parse = importlib.import_module("zmq.utils.monitor").parse_monitor_message
        self._watched = socket
        address = f"inproc://monitor-{next(_numbers)}"
        socket.monitor(address, sum(self._meanings))
        self._socket = zmq.Socket(context, zmq.PAIR)  # whatever kind the context makes by itself
        self._socket.connect(address)
        self.fd: int = self._socket.getsockopt(zmq.FD)
        """readable where there may be news since all of them were taken in"""

    def news(self) -> list[Connection]:
        """What became of the connection since this was last asked."""
        news: list[Connection] = []
        try:
            while True:
                event = self._parse(self._socket.recv_multipart(self._noblock))
                news.append(self._meanings[event["event"]])
        except self._again:
            return news

    def close(self) -> None:
        """Before the watched socket is, unless it could not be connected. Not twice."""
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._socket.close(0)
