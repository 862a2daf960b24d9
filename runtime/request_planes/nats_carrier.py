"""Requests over NATS: a subject per instance. Answers come home over TCP, as those of TCP do.

Source: recorded from ai-dynamo 1.6.1 (`nats_request.json`): the payload is that of TCP without
its frame, and the reply is empty.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from structlog import get_logger

from ...base.backoff import Backoff
from ...process.supervised import stopped, supervise
from ...transport.nats import NatsLink
from ..kv_stores import NatsAddress, NatsConnection, StoreError
from .answer import Answer
from .faults import Fault, RequestError
from .nats_service import GROUP, EndpointStats, NatsService

ACK_TIMEOUT_S = 5.0
UNSUBSCRIBE_TIMEOUT_S = 1.0
_MAX_MESSAGES, _MAX_BYTES = 1 << 14, 64 << 20

Take = Callable[[str, bytes], str]
"""Begins to answer a request for a subject; the acknowledgement."""
_Served: TypeAlias = tuple[str, str]
"""A subject, and the id of the service whose control subject it is: several have the same."""
log = get_logger(__name__)


class NatsCarrier:
    """Brings requests to subjects, and takes those for subjects that we serve."""

    def __init__(self, address: NatsAddress) -> None:
        """ConfigError if the address is none. Connects when it is first used."""
        self._connection = NatsConnection(address)
        self._served: dict[_Served, Take] = {}
        self._ends: dict[_Served, Callable[[], Awaitable[None]]] = {}
        self._services: list[NatsService] = []
        self._link: NatsLink | None = None
        """the connection that the subscriptions are on"""
        self._lost = asyncio.Event()
        self._connection.on_lost.add(self._lost.set)
        self._task: asyncio.Task[None] | None = None
        self._replies: set[asyncio.Task[None]] = set()

    async def send(self, address: str, id: str, payload: bytes, answer: Answer) -> None:
        """Bring it away, and pass the acknowledgement of the subject's worker to the answer.
        RequestError without one."""
        try:
            link = await self._connection.link()
            headers = {"request-id": id}
            reply = await link.request(address, payload, headers, ACK_TIMEOUT_S)
        except NoRespondersError:
            raise RequestError(Fault.UNREACHABLE, "nothing subscribes to it") from None
        except MaxPayloadError:
            text = f"NATS takes no request of {len(payload)} bytes"
            raise RequestError(Fault.TOO_LARGE, text) from None
        except (NatsTimeoutError, TimeoutError):
            raise RequestError(Fault.SILENT, "no acknowledgement in time") from None
        except (StoreError, NatsError, OSError) as error:
            raise RequestError(Fault.UNREACHABLE, str(error)) from None
        answer.on_ack(reply.decode(errors="replace"))

    async def serve(self, subject: str, take: Take) -> None:
        """Take requests for a subject, also after NATS was away. StoreError if it is away now."""
        await self._serve((subject, ""), take)

    async def serve_endpoint(
        self, service: NatsService, name: str, subject: str, take: Take
    ) -> EndpointStats:
        """As `serve`, as an endpoint of a service; its counts."""
        stats = EndpointStats(name, subject)
        await self.serve(subject, lambda at, payload: stats.on_request(take(at, payload)))
        service.endpoints.append(stats)
        return stats

    async def create_service(self, service: NatsService) -> None:
        """Answer what NATS's clients ask of services, until `remove_services`. As `serve`."""
        self._services.append(service)
        try:
            for subject, verb in service.control_subjects().items():
                await self._serve((subject, service.id), partial(_describe, service, verb))
        except BaseException:
            await self._remove_service(service)
            raise

    async def remove_services(self) -> None:
        """Answer for no service any more."""
        for service in list(self._services):
            await self._remove_service(service)

    async def _remove_service(self, service: NatsService) -> None:
        self._services.remove(service)
        for subject in service.control_subjects():
            await self._remove((subject, service.id))

    async def remove(self, subject: str) -> None:
        """Take no more of a subject."""
        await self._remove((subject, ""))

    async def _serve(self, served: _Served, take: Take) -> None:
        self._served[served] = take
        link = await self._connection.link()
        if self._link is None or self._link is link:
            self._link = link
            await self._subscribe(link, served)
        if self._task is None:
            self._task = supervise("requests over NATS", self._follow)

    async def _remove(self, served: _Served) -> None:
        self._served.pop(served, None)
        if (end := self._ends.pop(served, None)) is not None:
            await end()

    async def close(self) -> None:
        task, self._task = self._task, None
        await stopped(task)
        link, self._link = self._link, None
        if link is not None and self._ends:
            for served in list(self._ends):
                await self._remove(served)
            # A request that the server sends to a connection that is closing is lost, and its
            # caller waits for an acknowledgement: the server must know first.
            with suppress(TimeoutError):
                async with asyncio.timeout(UNSUBSCRIBE_TIMEOUT_S):
                    await link.flush()
        self._served.clear()
        self._ends.clear()
        for reply in list(self._replies):
            reply.cancel()
        await self._connection.close()

    async def _subscribe(self, link: NatsLink, served: _Served) -> None:
        subject, service = served

        def on_message(message: Msg) -> None:
            take = self._served.get(served)
            if take is not None and message.reply:
                text = take(subject, message.data)
                reply = asyncio.create_task(_reply(message, text))
                self._replies.add(reply)
                reply.add_done_callback(self._replies.discard)

        self._ends[served] = await link.subscribe_messages(
            subject, on_message, _MAX_MESSAGES, _MAX_BYTES, "" if service else GROUP
        )
        await link.flush()

    async def _follow(self) -> None:
        """Subscribe again on each connection that comes after another."""
        backoff = Backoff()
        while True:
            try:
                link = await self._connection.link()
                if link is not self._link:
                    for served in list(self._served):
                        await self._subscribe(link, served)
                    self._link = link
                backoff.reset()
                await self._lost.wait()
                self._lost.clear()
            except (StoreError, NatsError, OSError) as error:
                log.warning("requests over NATS wait for it", error=str(error))
                await asyncio.sleep(backoff.next())


def _describe(service: NatsService, verb: str, subject: str, payload: bytes) -> str:
    return service.answer(verb)


async def _reply(message: Msg, text: str) -> None:
    try:
        await message.respond(text.encode())
    except (NatsError, OSError) as error:
        log.warning("a request over NATS is not acknowledged", error=str(error))
