"""PodWatch: the pods of a pool, its objectives and rewrites, as an API server has them now.

What was seen last stays while the API server is away; only what it reports takes an endpoint away.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import structlog

from ...process.supervised import stopped, supervise
from ...runtime.kv_stores import (
    KubernetesApi,
    KubernetesConfig,
    Listed,
    Outcome,
    Reflector,
    StoreError,
)
from ...workers.records import DiscoveredWorker
from ..pods_config import DECODE, PREFILL, PodsConfig
from .objectives import ObjectiveView
from .pod_view import PodView
from .pool_objects import GROUPS, PoolObjects
from .rewrites import RewriteView

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools"
ASK_AGAIN_S = 30.0
"""After a refusal: a kind of object may be installed, a right given."""

log = structlog.get_logger(__name__)


class PodWatch:
    """From the first `start` of one of its sources to the last `close`."""

    def __init__(self, config: PodsConfig, kubernetes: KubernetesConfig | None = None) -> None:
        """ConfigError if the environment names no API server."""
        self._config = config
        self._kubernetes = kubernetes or KubernetesConfig.from_environment()
        self._namespace = config.pool_namespace or self._kubernetes.namespace
        self._api = KubernetesApi(self._kubernetes)
        self.view, self.objectives = PodView(config), ObjectiveView(config.pool)
        self.rewrites = RewriteView(config.pool)
        self.decode, self.prefill = PodWorkers(self, DECODE), PodWorkers(self, PREFILL)
        self._selector: str | None = None
        self._behind = {"pool", "pods"} if config.pool is not None else {"pods"}
        """what was not listed yet"""
        self._listed = asyncio.Event()
        self._refusal: StoreError | None = None
        self._users = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._pods_task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Return once the pods are known. StoreError if the API server refuses us."""
        self._users += 1
        if self._users == 1:
            self._follow_all()
        await self._listed.wait()
        if self._refusal is not None:
            raise self._refusal

    async def end(self) -> None:
        """One user less; the last one ends it."""
        self._users -= 1
        if self._users:
            return
        for task in [*self._tasks]:
            await stopped(task)
        await self._api.close()

    def _follow_all(self) -> None:
        config, namespace = self._config, self._namespace
        if config.pool is not None:
            named = f"metadata.name={config.pool}"
            self._follow("pool", POOLS.format(namespace), self._on_pool, fields=named)
        self._follow_pods()
        kinds: dict[str, PoolObjects[Any]] = {
            "inferenceobjectives": self.objectives,
            "inferencemodelrewrites": self.rewrites,
        }
        for plural, view in kinds.items():
            for group in GROUPS:
                path = f"/apis/{group}/v1alpha2/namespaces/{namespace}/{plural}"
                self._follow(f"{plural}-{group}", path, partial(_on_named, view, group))

    def _follow_pods(self) -> None:
        """Have the pods of the pool's selector watched, and no others."""
        spec = self.view.spec
        selector = None if spec is None else spec.labels
        if selector == self._selector:
            return
        self._selector = selector
        if self._pods_task is not None:
            self._pods_task.cancel()
        self._pods_task = None
        if selector is None:
            self.view.on_pods_listed(())
            return
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        on_pods = partial(self._on_pods, selector)
        self._pods_task = self._follow("pods", path, on_pods, labels=selector)

    def _follow(
        self,
        what: str,
        path: str,
        tell: Callable[[Outcome], None],
        labels: str = "",
        fields: str = "",
    ) -> asyncio.Task[None]:
        watch_s = self._kubernetes.watch_s
        reflector = Reflector(self._api, path, tell, labels=labels, fields=fields, watch_s=watch_s)
        task = supervise(f"watch of Kubernetes-{what}", partial(self._reflect, what, reflector))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _reflect(self, what: str, reflector: Reflector) -> None:
        while True:
            try:
                await reflector.run()
            except StoreError as error:
                if what in self._behind and not self._listed.is_set():
                    self._refusal = error
                    self._listed.set()
                    return
                log.info("not watched for now", what=what, error=str(error)[:300])
                await asyncio.sleep(ASK_AGAIN_S)

    # What they report

    def _on_pool(self, outcome: Outcome) -> None:
        if isinstance(outcome, Listed):
            found = outcome.objects[0] if outcome.objects else None
        else:
            found = None if outcome.deleted else outcome.found
        if found is None:
            log.warning("there is no such InferencePool", pool=self._config.pool,
                        namespace=self._namespace)  # fmt: skip
        self.view.on_pool(found)
        self._behind.discard("pool")
        self._follow_pods()
        if self._selector is None:
            self._behind.discard("pods")
        self._on_change()

    def _on_pods(self, selector: str, outcome: Outcome) -> None:
        if selector != self._selector:
            return  # the last words of a watch that was ended
        if isinstance(outcome, Listed):
            self.view.on_pods_listed(outcome.objects)
            self._behind.discard("pods")
        else:
            self.view.on_pod(outcome.found, outcome.deleted)
        self._on_change()

    def _on_change(self) -> None:
        for source in (self.decode, self.prefill):
            source.changed.set()
        if not self._behind:
            self._listed.set()


def _on_named(view: PoolObjects[Any], group: str, outcome: Outcome) -> None:
    if isinstance(outcome, Listed):
        view.on_listed(group, outcome.objects)
    else:
        view.on_changed(group, outcome.found, outcome.deleted)


class PodWorkers:
    """Implements WorkerSource: the endpoints of one role."""

    def __init__(self, watch: PodWatch, role: str) -> None:
        self._watch, self._role = watch, role
        self._started = False
        self.changed = asyncio.Event()

    @property
    def workers(self) -> Mapping[int, DiscoveredWorker]:
        return self._watch.view.workers[self._role]

    @property
    def elsewhere(self) -> Collection[int]:
        """Any: what an API server reports as gone is gone, it loses nothing by a restart."""
        return _EVERY_ID

    async def start(self) -> None:
        self._started = True
        await self._watch.begin()

    async def close(self) -> None:
        if self._started:
            self._started = False
            await self._watch.end()


class _EveryId(Collection[int]):
    def __contains__(self, worker_id: Any) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        raise TypeError("there is no end of them")

    def __len__(self) -> int:
        return 1 << 63


_EVERY_ID = _EveryId()
