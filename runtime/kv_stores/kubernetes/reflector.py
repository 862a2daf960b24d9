"""One kind of object kept up to date: a list and its watch, asked as a ResourcePosition says."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from random import Random

from structlog import get_logger

from ....base.backoff import Backoff
from ..store import StoreError
from .kubernetes_api import ApiError, KubernetesApi
from .resource_position import GONE, ApiStatusError, ListPage, Outcome, ResourcePosition

log = get_logger(__name__)


class Reflector:
    """`run` goes on until it is cancelled; StoreError if the server never let us in."""

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        notify: Callable[[Outcome], None],
        *,
        labels: str = "",
        fields: str = "",
        watch_s: float,
    ) -> None:
        self._api, self._path, self._notify = api, path, notify
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        self._params = {name: text for name, text in selectors.items() if text}
        self._watch_s = watch_s
        self._rng = Random()
        self.position = ResourcePosition()

    async def run(self) -> None:
        backoff = Backoff()
        synced = False
        while True:
            delay = 0.0
            try:
                request = self.position.request
                if isinstance(request, ListPage):
                    synced = await self._list(request) or synced
                else:
                    await self._watch(request.version)
                backoff.reset()
            except (StoreError, ApiStatusError, ValueError) as error:
                if _code(error) == GONE:
                    log.info("Kubernetes forgot changes: listed again", path=self._path)
                    self.position.on_gone()
                elif isinstance(error, ValueError):
                    self.position.on_malformed()
                elif isinstance(error, StoreError) and not error.transient and not synced:
                    raise
                log.warning("a watch of Kubernetes goes on later", path=self._path,
                            error=str(error)[:300])  # fmt: skip
                asked = error.retry_after_s if isinstance(error, ApiError) else 0.0
                delay = max(asked, backoff.next())
            await asyncio.sleep(delay)

    async def _list(self, request: ListPage) -> bool:
        """Whether the list is complete."""
        params = dict(self._params)
        if request.limit:
            params["limit"] = str(request.limit)
        if request.token:
            params["continue"] = request.token
        listed = self.position.on_page(await self._api.call("GET", self._path, params))
        if listed is not None:
            self._notify(listed)
        return listed is not None

    async def _watch(self, version: str) -> None:
        lasts_s = max(1, round(self._watch_s * self._rng.uniform(0.8, 1.0)))
        params = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(lasts_s),
        }
        async with aclosing(self._api.lines(self._path, params, lasts_s)) as lines:
            async for line in lines:
                if (changed := self.position.on_event(line)) is not None:
                    self._notify(changed)


def _code(error: Exception) -> int:
    if isinstance(error, ApiStatusError):
        return error.code
    return error.status if isinstance(error, ApiError) else 0
