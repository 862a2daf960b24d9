"""ServingContext: what the engines of one process share: TLS, store, request plane, event plane."""

from contextlib import AsyncExitStack
from typing import Self

from ...base.clock import SystemClock
from ...runtime.event_planes import EventPlane
from ...runtime.kv_stores import KeyValueStore
from ...runtime.request_planes import RequestServer
from ...transport.security import FileWatch, ServerTls
from .config import ServingConfig
from .event_plane import open_event_plane


class ServingContext:
    """Opened as the configuration says while entered. ConfigError if one of them cannot be had."""

    def __init__(self, config: ServingConfig, *, capacity: int) -> None:
        """`capacity`: most requests at a time over Dynamo's request plane."""
        self._config = config
        self._capacity = capacity
        self._stack = AsyncExitStack()
        self.tls: ServerTls | None = None
        self.store: KeyValueStore | None = None
        """where the engines are registered"""
        self.requests: RequestServer | None = None
        """where they answer as Dynamo's workers"""
        self.plane: EventPlane | None = None
        """where their KV events are published"""

    async def __aenter__(self) -> Self:
        config, closed = self._config, self._stack.push_async_callback
        try:
            self.plane = await open_event_plane(config)
            if self.plane is not None:
                closed(self.plane.close)
            self.store = config.discovery.open(config.discovery.backend(given_workers=True))
            if self.store is not None:
                closed(self.store.close)
            if self.store is not None and config.dialect == "dynamo":
                self.requests = RequestServer(capacity=self._capacity)
                closed(self.requests.close)
                await self.requests.start(config.host)
            if config.tls.on:
                self.tls = ServerTls(config.tls)
                watch = FileWatch(SystemClock())
                watch.files.append(self.tls.files)
                watch.start()
                closed(watch.close)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
