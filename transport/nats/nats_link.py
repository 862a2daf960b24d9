"""One connection to a NATS server, from open to lost. The only file that knows nats-py's inside.

nats-py's own reconnect is not used: its first connect and its later ones are two different
loops, both with a fixed wait that the whole fleet shares; any -ERR of the server ends it for
good; its buffer raises when full. So a connection here is used once, and NatsPlane makes the
next. Reconnecting stays switched on only because nats-py then notices a loss without first
writing its backlog to the dead socket, and it is parked before it does anything.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any, TypeAlias

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, SlowConsumerError
from nats.js import JetStreamContext
from nats.protocol import parser as parsing
from structlog import get_logger

from ...base.urls import user_of
from ...process.supervised import cancelled_for_sure
from ..security import NatsAuth
from .nats_shortcut import NatsShortcut, Sink

log = get_logger(__name__)

CONNECT_TIMEOUT_S = 2
FLUSH_TIMEOUT_S = 5
MAX_UNSENT_BYTES = 1 << 20
MESSAGES_A_TURN = 64
"""Read, or handed to a handler, before whatever else is due on the loop gets its turn."""
AT_ONCE = 16
"""This many are handled as they are read; more in one turn waits for a task, within bounds."""
Handler: TypeAlias = Callable[[str, bytes], None]
"""Takes a subject and a payload. Raises nothing."""
_NEVER_S = 10**6
_NO_LIMIT = 1 << 62


class _Client(Client):
    """nats-py's client, which would send its credentials in the clear if a server at a tls://
    address, or a machine in between, says that it has no TLS; would read all that has come in
    one go, however much that is; would wake a task for each message of a subscription; would
    stop reading for good at a message whose subject or headers it cannot read; and would have
    asyncio write to a lost connection."""

    secret = False
    _read = 0
    _given = 0  # to handlers in this turn, as they were read

    def __init__(self, on_dropped: Callable[[], None]) -> None:
        super().__init__()
        self._on_dropped = on_dropped
        self.plain: dict[int, tuple[Subscription, Handler]] = {}
        """by their numbers, those whose handlers want nothing but subject and payload"""
        self.sinks: dict[int, Sink] = {}
        """and those that want payloads alone, as many as have come"""

    async def _connect_to_server(self, s: Any) -> None:
        await super()._connect_to_server(s)
        # Several pieces for a connection that was lost: since Python 3.12 asyncio then writes to
        # whatever connection has that socket's number by now, which stalls that one.
        transport: Any = self._transport
        transport.writelines = lambda pieces: transport.write(b"".join(pieces))

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        try:
            if not self.take(sid, subject, data):
                await super()._process_msg(sid, subject, reply, data, headers)
        except (ValueError, IndexError):  # nothing that ours publish
            self._on_dropped()
        self._read += 1
        if self._read % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    def take(self, sid: int, subject: bytes, data: bytes) -> bool:
        """Give a message to its sink or plain handler; False if it has none, or it is not the
        message's turn."""
        if (sink := self.sinks.get(sid)) is not None:
            sink([data])
            return True
        plain = self.plain.get(sid)
        if plain is None or self._given == AT_ONCE or plain[0].pending_msgs:
            return False
        if not self._given:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._given += 1
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        try:
            name = subject.decode()
        except ValueError:  # nothing that ours publish
            self._on_dropped()
        else:
            plain[1](name, data)
        return True

    def shorten(self) -> None:
        """Read messages for plain handlers straight from the socket; the library goes on reading
        them where it is another inside than we know."""

        def is_idle() -> bool:
            parser = self._ps
            return (len(buffer), len(parser.buf), parser.state) == nothing

        try:
            transport: Any = self._transport  # no public way to its socket
            buffer, socket = transport._io_reader._buffer, transport._io_writer.transport
            nothing = 0, 0, parsing.AWAITING_CONTROL_LINE
            is_idle()  # is all there that it looks at?
            shortcut = NatsShortcut(self.take, self.sinks, is_idle, socket.get_protocol())
        except AttributeError as error:
            _log_slow_reading(str(error))
        else:
            socket.set_protocol(shortcut)

    def _begin_turn(self) -> None:
        self._given = 0

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """A lost connection is closed by a task of its own, after what it has yet to send:
        that this cannot be sent is no news."""
        with contextlib.suppress(OSError):
            await super()._close(status, do_cbs)

    def _connect_command(self) -> bytes:
        writer = getattr(self._transport, "_io_writer", None)
        if self.secret and (writer is None or writer.get_extra_info("ssl_object") is None):
            raise ConnectionError("the server offers no TLS, which its address asks for")
        command: bytes = super()._connect_command()
        return command


class NatsLink:
    """A connection. All but `close` may raise nats.errors.Error or OSError once it is lost."""

    def __init__(self, on_lost: Callable[[], None], on_slow: Callable[[], None]) -> None:
        """`on_lost` is called when the connection is over, `on_slow` for each message dropped."""
        self._client = _Client(on_slow)
        self._on_lost = on_lost
        self._on_slow = on_slow
        self._opened = False
        self._lost = asyncio.Event()
        self._subscriptions: set[Subscription] = set()
        self._flushes: set[asyncio.Task[None]] = set()
        self.error: BaseException | None = None
        """why it was lost, if that is known"""

    @property
    def alive(self) -> bool:
        return self._opened and not self._lost.is_set() and self._client.is_connected

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the socket has not taken yet. Stay below MAX_UNSENT_BYTES."""
        return self._client.pending_data_size

    @property
    def server_version(self) -> tuple[int, int]:
        """Major and minor of the server we are connected to."""
        version = self._client.connected_server_version
        return version.major, version.minor

    def jetstream(self, timeout_s: float) -> JetStreamContext:
        """Streams of the server; each call of it may take `timeout_s`."""
        return self._client.jetstream(timeout=timeout_s)

    def new_inbox(self) -> str:
        """A subject that is ours alone."""
        return self._client.new_inbox()

    async def open(self, url: str, auth: NatsAuth | None = None) -> None:
        """Connect, or raise. Call once."""
        options = {} if auth is None else auth.options()
        if "password" in options:
            options["user"] = user_of(url)
        self._client.secret = url.startswith("tls://")
        with cancelled_for_sure():
            await self._client.connect(
                url,
                name="dynamo-router",
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                closed_cb=self._on_closed,
                connect_timeout=CONNECT_TIMEOUT_S,
                ping_interval=_NEVER_S,  # flush() is our heartbeat: it knows what to do on loss
                pending_size=_NO_LIMIT,  # the bound is ours: nats-py's would block the publisher
                skip_subject_validation=True,  # the plane has checked it
                **options,
            )
        self._client.shorten()
        self._opened = True

    async def publish(self, subject: str, payload: bytes, *, reply: str = "") -> bool:
        """Hand over one message, without waiting; False if the server takes none that large.
        `reply`: where its answers go."""
        try:
            await self._client.publish(subject, payload, reply)
        except MaxPayloadError:
            return False
        return True

    async def request(
        self, subject: str, payload: bytes, headers: dict[str, str], timeout_s: float
    ) -> bytes:
        """Send a request to a subject, and wait for the reply."""
        with cancelled_for_sure():
            answer = await self._client.request(
                subject, payload, timeout=timeout_s, headers=headers
            )
        return bytes(answer.data)

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        max_messages: int,
        max_bytes: int,
        group: str = "",
        sink: Sink | None = None,
    ) -> Callable[[], Awaitable[None]]:
        """Deliver to `handler`, while at most this much waits; the result ends it. Of a `group`
        one gets each message. A `sink` takes those that come together, wherever they are read
        straight from the socket; subscriptions with the same one keep their messages' order."""

        def on_message(message: Msg) -> None:
            handler(message.subject, message.data)

        bounds = max_messages, max_bytes
        subscription = await self._subscribe(subject, on_message, *bounds, group)
        if sink is None:
            self._client.plain[subscription._id] = subscription, handler
        elif not subscription.pending_msgs:  # else it would overtake those
            self._client.sinks[subscription._id] = sink
        return partial(self._end, subscription)

    async def subscribe_messages(
        self,
        subject: str,
        handler: Callable[[Msg], None],
        max_messages: int,
        max_bytes: int,
        group: str = "",
    ) -> Callable[[], Awaitable[None]]:
        """As `subscribe`, with the headers of messages."""
        subscription = await self._subscribe(subject, handler, max_messages, max_bytes, group)
        return partial(self._end, subscription)

    async def _subscribe(
        self,
        subject: str,
        handler: Callable[[Msg], None],
        max_messages: int,
        max_bytes: int,
        group: str,
    ) -> Subscription:
        handled = 0

        async def on_message(message: Msg) -> None:
            nonlocal handled
            handler(message)
            handled += 1
            if handled % MESSAGES_A_TURN == 0:
                await asyncio.sleep(0)

        with cancelled_for_sure():
            subscription = await self._client.subscribe(
                subject,
                queue=group,
                cb=on_message,
                pending_msgs_limit=max_messages,
                pending_bytes_limit=max_bytes,
            )
            self._subscriptions.add(subscription)
        return subscription

    async def _end(self, subscription: Subscription) -> None:
        """One whose connection is gone went with it."""
        if subscription in self._subscriptions:
            self._subscriptions.discard(subscription)
            self._client.plain.pop(subscription._id, None)
            self._client.sinks.pop(subscription._id, None)
            with contextlib.suppress(NatsError, OSError), cancelled_for_sure():
                await subscription.unsubscribe()

    async def flush(self) -> bool:
        """Wait until the server has read all that was published; False if the link is over.

        No answer within FLUSH_TIMEOUT_S ends the link: a stalled server is a lost one.
        """
        if not self.alive:
            return False
        # A task of its own: nats-py's reader dies of the answer to a ping that was cancelled.
        task = asyncio.create_task(self._ping_twice())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        return self.alive and task.done() and not task.cancelled()

    async def close(self) -> None:
        """Drop the connection at once; flush first if that matters. Never raises."""
        self._lose(None)
        self._cut()
        for task in self._flushes:
            task.cancel()
        self._client.plain.clear()
        self._client.sinks.clear()
        for subscription in self._subscriptions:
            _stop(subscription)
        self._subscriptions.clear()
        if not self._opened:
            # What a failed handshake leaves behind never learns that it is closed, and nats-py
            # would wait for that.
            self._client._transport = None
        # A task of its own: nats-py's close may raise, for its backlog has lost its socket, or end
        # cancelled, because it shares the future that it waits for with a task that it cancels.
        closing = asyncio.create_task(self._client.close())
        await asyncio.wait({closing})
        failure = None if closing.cancelled() else closing.exception()
        self.error = self.error or failure
        self._cut()  # the socket may be newer than the first cut, if we were still connecting
        await asyncio.sleep(0)  # nats-py cancels its tasks without waiting for their end

    async def _ping_twice(self) -> None:
        try:
            # nats-py writes a ping ahead of the messages it still holds. Once the first has
            # come back they are written, so that the second is behind them.
            for _ in range(2):
                reader = self._client._reading_task
                if reader is None or reader.done():  # then nats-py's flush would wait for no answer
                    raise ConnectionError("the reader of the connection has ended")
                await self._client.flush(timeout=FLUSH_TIMEOUT_S)
        except Exception as error:  # no answer, for whatever reason
            self._lose(error)

    def _lose(self, error: BaseException | None) -> None:
        self.error = self.error or error
        if not self._lost.is_set():
            self._lost.set()
            if self._opened:
                self._on_lost()

    def _cut(self) -> None:
        """Close the socket without waiting for what it still has to send."""
        # No public way: nats-py's close() waits for ever on a server that stands still.
        transport: Any = self._client._transport
        writer = getattr(transport, "_io_writer", None)
        if writer is not None:
            # In Python 3.11.2 a TLS transport that was closed twice cannot be aborted again.
            with contextlib.suppress(AttributeError):
                writer.transport.abort()

    async def _on_error(self, error: Exception) -> None:
        if not self._opened:
            raise error  # else nats-py tries again by itself
        if isinstance(error, SlowConsumerError):
            self._on_slow()
        else:
            self.error = error

    async def _on_disconnected(self) -> None:
        self._lose(None)
        if self._client.is_reconnecting:
            await asyncio.Event().wait()  # until close() cancels the reconnect

    async def _on_closed(self) -> None:
        self._lose(self._client.last_error)


@cache
def _log_slow_reading(reason: str) -> None:
    """Once, not for each connection."""
    log.warning("this version of nats-py reads each message itself, which is slower", reason=reason)


def _stop(subscription: Subscription) -> None:
    # unsubscribe() refuses to, once the connection is closed.
    task = subscription._wait_for_msgs_task
    if task is not None:
        task.cancel()
