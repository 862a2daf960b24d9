"""EngineHttp: the connections to one engine over HTTP/1.1.

On aiohttp, since the router's own HTTP listener needs it anyway.
"""

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import aiohttp

from ...base.errors import StatusCode
from ...transport.security import ClientTls, EngineKey
from ..channels import WINDOW_BYTES, ConnectionPolicy
from ..failures import EngineCallError, Origin
from .openai_errors import error_of
from .sse import EventReader

KEEP_S = 2.0
"""How long a connection is kept for the next request: shorter than servers do (llama.cpp and vLLM
5 s), since a request on one that is just being closed is lost."""
DRAIN_S = 0.5
ERROR_BYTES = 16 << 10
"""Of an error's body, as much is read."""
NOT_THERE = (StatusCode.NOT_FOUND, StatusCode.UNIMPLEMENTED)
UNTOLD = (*NOT_THERE, StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED)
"""What an engine answers for a page that it has not, or keeps to itself."""
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "dynamo-router"}


class EngineHttp:
    """Asks one engine; failures are EngineCallErrors. Nothing is sent twice, no redirect followed.

    The number of connections is that of the requests in flight.
    """

    def __init__(
        self,
        address: str,
        policy: ConnectionPolicy,
        tls: ClientTls | None = None,
        tls_name: str | None = None,
        key: EngineKey | None = None,
    ) -> None:
        self._base = f"{'http' if tls is None else 'https'}://{address}"
        self._policy, self._tls, self._tls_name = policy, tls, tls_name
        self._key = key
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self.keeps_connections = True
        """whether one may serve several requests"""

    async def ask(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float
    ) -> bytes:
        """The body of an answer of status 200; a call without one by then is DEADLINE_EXCEEDED."""
        limit = aiohttp.ClientTimeout(total=timeout)
        async with self.opened(method, path, body, timeout=limit) as response:
            return await self.whole(response)

    @asynccontextmanager
    async def opened(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of status 200, whose body has not been read. What is left of it when the block
        ends is not wanted: the connection is closed, by which the engine hears of it."""
        sent = dict(headers or {})
        if not self.keeps_connections:
            sent["Connection"] = "close"
        more: dict[str, Any] = {}
        if self._key is not None:
            sent["Authorization"] = f"Bearer {self._key.value}"
        if body is not None:
            sent["Content-Type"] = "application/json"
            more["data"] = io.BytesIO(body)  # as a file, which is written in parts
        if self._tls is not None:
            more["ssl"] = self._tls.http1_context
            more["server_hostname"] = self._tls.name_of(self._tls_name)
        with _translated():
            response = await self._opened_session().request(
                method,
                self._base + path,
                allow_redirects=False,
                timeout=timeout or aiohttp.ClientTimeout(None),
                headers=sent,
                **more,
            )
            try:
                if response.status != 200:
                    said = await self._beginning(response)
                    after = response.headers.get("Retry-After")
                    raise error_of(response.status, said, after)
                yield response
            finally:
                response.release() if response.content.at_eof() else response.close()

    async def whole(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, up to the longest message; Origin.ANSWER_SIZE beyond."""
        parts, size = [], 0
        with _translated():
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > self._policy.max_message_bytes:
                    raise self._too_large()
        return b"".join(parts)

    async def events(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event, up to the longest message; as for `whole`."""
        reader = EventReader(self._policy.max_message_bytes)
        try:
            with _translated():
                async for part in response.content.iter_any():
                    for data in reader.feed(part):
                        yield data
        except OverflowError:
            raise self._too_large() from None

    async def drain(self, response: aiohttp.ClientResponse) -> None:
        """Read what is left of a body that should be at its end, so that its connection can be
        used again; nothing happens if it is not."""
        with suppress(EngineCallError), _translated():
            async with asyncio.timeout(DRAIN_S):
                async for _ in response.content.iter_any():
                    pass

    def _too_large(self) -> EngineCallError:
        text = f"the answer is longer than {self._policy.max_message_bytes} bytes"
        return EngineCallError(Origin.ANSWER_SIZE, StatusCode.RESOURCE_EXHAUSTED, text)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _beginning(self, response: aiohttp.ClientResponse) -> bytes:
        said = b""
        async for part in response.content.iter_any():
            said += part
            if len(said) >= ERROR_BYTES:
                break
        said = said[:ERROR_BYTES]
        return said if self._key is None else self._key.hidden_in(said)

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EngineCallError(Origin.CONNECT, StatusCode.UNAVAILABLE, "its client was closed")
        if self._session is None:  # made in the loop that it is used in
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=_HEADERS,
                auto_decompress=False,
                read_bufsize=WINDOW_BYTES,
                timeout=aiohttp.ClientTimeout(None),
            )
        return self._session


@contextmanager
def _translated() -> Iterator[None]:
    """What aiohttp raises, in the words of failures.py."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise _failure(Origin.CONNECT, error) from error
    except aiohttp.ClientResponseError as error:
        text = f"the answer is no HTTP: {error.message}"
        raise EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, text) from error
    except TimeoutError as error:
        text = "no answer in time"
        raise EngineCallError(Origin.ENGINE, StatusCode.DEADLINE_EXCEEDED, text) from error
    except (aiohttp.ClientError, OSError) as error:
        raise _failure(Origin.TRANSPORT, error) from error


def _failure(origin: Origin, error: Exception) -> EngineCallError:
    text = str(error) or type(error).__name__
    return EngineCallError(origin, StatusCode.UNAVAILABLE, text)
