"""ConnectionMonitor: what becomes of a socket's connection to a publisher.

The library connects again by itself where a connection is lost, but not where something came that
is no ZMQ: then whoever hears the publisher does, after RENEW_S. Asked by the plane's inlets, and by
those who hear engines' events.
"""

import importlib
from itertools import count
from typing import Any

RENEW_S = 3.0
"""How long a publisher may take to be connected until it is tried anew."""
_numbers = count()


class ConnectionMonitor:
    """Watches a socket with one connection, from before that is made to `close`."""

    def __init__(self, context: Any, socket: Any) -> None:
        """ZMQError if there can be no socket to hear of it; then the watched one is to be closed,
        too."""
        zmq: Any = importlib.import_module("zmq")
        self._again, self._noblock = zmq.Again, zmq.NOBLOCK
        self._made = zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._parse = importlib.import_module("zmq.utils.monitor").parse_monitor_message
        self._watched = socket
        address = f"inproc://monitor-{next(_numbers)}"
        socket.monitor(address, self._made | zmq.EVENT_DISCONNECTED)
        self._socket = zmq.Socket(context, zmq.PAIR)  # whatever kind the context makes by itself
        self._socket.connect(address)
        self.fd: int = self._socket.getsockopt(zmq.FD)
        """readable where there may be news since all of them were taken in"""

    def news(self) -> list[bool]:
        """What became of the connection since this was last asked: True made, False lost."""
        news: list[bool] = []
        try:
            while True:
                told = self._parse(self._socket.recv_multipart(self._noblock))
                news.append(told["event"] == self._made)
        except self._again:
            return news

    def close(self) -> None:
        """Before the watched socket is, unless it could not be connected. Not twice."""
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._socket.close(0)
