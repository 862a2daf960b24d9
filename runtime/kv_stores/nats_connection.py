"""A connection to NATS with JetStream that comes back: one attempt at a time, with back-off."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoRespondersError
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from ...base.backoff import Backoff
from ...base.urls import redact_text, redact_url, split_nats_url
from ...process.supervised import cancelled_for_sure
from ...transport.nats import NatsLink
from .nats_address import NatsAddress
from .store import StoreError

TIMEOUT_S = 5.0
"""The longest one call may take, attempts to connect included."""
_ATTEMPT_S = 2.5
_OLDEST = (2, 11)
STREAM_IN_USE = 10058
"""The code of a refusal: a stream of this name has another configuration."""
_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, RecursionError)
"""What nats-py, or who looks at what it read, raises of JSON that is no answer of JetStream's."""
_LONGEST_TEXT = 1000
"""Characters that are repeated of what a server says."""
T = TypeVar("T")


def refusal(what: str, error: APIError) -> StoreError:
    """JetStream's refusal of `what`, with its own words."""
    why = redact_text(str(error.description or f"error {error.err_code}")[:_LONGEST_TEXT])
    return StoreError(f"NATS refuses {what}: {why}")


class NatsConnection:
    """The link of the moment. `on_lost` are called when it is gone."""

    def __init__(self, address: NatsAddress) -> None:
        """ConfigError if an address is none."""
        self._urls = [part.strip() for part in address.url.split(",")]
        for part in self._urls:
            split_nats_url(part)
        if address.auth is not None:
            address.auth.check_url(address.url)
        self._auth = address.auth
        self._link: NatsLink | None = None
        self._opening = asyncio.Lock()
        self._backoff = Backoff()
        self._closed = False
        self.on_lost: set[Callable[[], None]] = set()

    async def link(self) -> NatsLink:
        """One that is alive; StoreError if there is none within TIMEOUT_S."""
        end = time.monotonic() + TIMEOUT_S
        async with self._opening:
            while (link := self._link) is None or not link.alive:
                if self._closed:
                    raise StoreError("the connection to NATS is closed", transient=False)
                await self._drop()
                failure = await self._open(self._urls[0])
                if failure is None:
                    self._backoff.reset()
                    continue
                self._urls.append(self._urls.pop(0))
                delay = self._backoff.next()
                if not failure.transient or time.monotonic() + delay >= end:
                    raise failure
                await asyncio.sleep(delay)
            return link

    async def call(self, ask: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        """What JetStream answers; APIError is left to the caller, all else is StoreError: also an
        answer that cannot be read, by nats-py or by `ask`."""
        link = await self.link()
        try:
            with cancelled_for_sure():
                return await ask(link.jetstream(_ATTEMPT_S))
        except (NoRespondersError, ServiceUnavailableError) as error:
            if isinstance(error, APIError) and error.err_code == 10039:
                raise self._failed("JetStream is not enabled", transient=False) from None
            raise self._failed("JetStream does not answer: is it enabled?") from None
        except APIError:
            raise
        except MaxPayloadError:
            raise self._failed("it takes no message as large as this", transient=False) from None
        except (NatsError, OSError) as error:
            raise self._failed(str(error) or type(error).__name__) from None
        except _UNREADABLE as error:
            text = f"its answer cannot be read: {type(error).__name__}: {error}"
            raise self._failed(text) from None

    async def find(self, ask: Callable[[JetStreamContext], Awaitable[T]], what: str) -> T | None:
        """The same; None if JetStream does not find it, StoreError if it refuses `what`."""
        try:
            return await self.call(ask)
        except NotFoundError:
            return None
        except APIError as error:
            raise refusal(what, error) from None

    async def close(self) -> None:
        self._closed = True
        async with self._opening:
            await self._drop()

    async def _open(self, url: str) -> StoreError | None:
        """Connect to one server, or say why not."""
        self._link = NatsLink(self._notify, self._notify)
        try:
            await self._link.open(url, self._auth)
        except (NatsError, OSError) as error:
            reason = str(self._link.error or error) or type(error).__name__
            await self._drop()
            refused = "authorization" in reason.lower()
            return self._failed(reason, transient=not refused, url=url)
        if (version := self._link.server_version) < _OLDEST:
            await self._drop()
            wanted, found = ".".join(map(str, _OLDEST)), ".".join(map(str, version))
            text = f"leases need NATS {wanted}, and it is {found}"
            return self._failed(text, transient=False, url=url)
        return None

    async def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _notify(self) -> None:
        for listener in list(self.on_lost):
            listener()

    def _failed(self, text: str, *, transient: bool = True, url: str | None = None) -> StoreError:
        shown = redact_url(url or self._urls[0])
        return StoreError(
            f"NATS at {shown}: {redact_text(text[:_LONGEST_TEXT])}", transient=transient
        )
