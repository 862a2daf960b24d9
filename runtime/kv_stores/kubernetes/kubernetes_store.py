"""Discovery over Kubernetes as a key-value store: each pod writes its own keys, all read them.

The lease of a pod's keys is the pod: they are visible while it is ready, and are deleted with it.
So a key that was put is not seen before its pod is ready, and no pod writes another's keys: what
would need that (`create`, `replace`) is refused.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from ....process.supervised import stopped
from ..pending_changes import PendingChanges
from ..store import (
    LEASE_TTL_S,
    Entry,
    LeaseLostError,
    Listing,
    StoreError,
    Watch,
    check_name,
    new_lease_id,
)
from .cluster_view import Changes, ClusterView, ready_in_pod, ready_in_slice
from .kubernetes_api import KubernetesApi
from .kubernetes_config import KubernetesConfig
from .own_metadata import OwnMetadata
from .reflector import Reflector
from .resource_position import Listed, Outcome
from .worker_metadata import GROUP, MAPS, PLURAL, VERSION, normalized

LABELS = "nvidia.com/dynamo-discovery-enabled=true"
"""Of the EndpointSlices (or pods) that count; Dynamo's operator sets it."""


class KubernetesStore:
    """One client of one namespace. Reads nothing from the server until something is read of it."""

    def __init__(self, config: KubernetesConfig | None = None) -> None:
        """ConfigError without the packages of the extra `kubernetes`."""
        self._config = config or KubernetesConfig.from_environment()
        self._api = KubernetesApi(self._config)
        identity = self._config.identity
        self._own = OwnMetadata(self._api, identity) if identity is not None else None
        self.view = ClusterView(ready_in_pod if self._config.containers else ready_in_slice)
        self._reflectors: asyncio.Task[None] | None = None
        self._behind = {"metadata", "readiness"}
        """what was not listed yet"""
        self._synced = asyncio.Event()
        self._refusal: StoreError | None = None
        self._closed = False
        self.watches: dict[str, set[PendingChanges]] = {}

    def bucket(self, name: str) -> "KubernetesBucket":
        return KubernetesBucket(self, check_name("bucket", name))

    async def grant(self, ttl_s: float = LEASE_TTL_S, lease: int | None = None) -> int:
        """The id that our pod's name gives us; at random, and with nothing written, without a pod.

        `ttl_s` means nothing here: how soon a pod that died is not ready any more is for its probes
        to say.
        """
        if self._own is None:
            await self.read()
            return lease or new_lease_id()
        await self._own.apply()
        return self._own.identity.instance_id

    async def renew(self, lease: int) -> float:
        if self._own is not None and not await self._own.check():
            raise LeaseLostError(f"the metadata of {self._own.identity.name} was deleted")
        return self._config.check_s

    async def revoke(self, lease: int) -> None:
        if self._own is not None:
            await self._own.remove()

    async def close(self) -> None:
        self._closed = True
        task, self._reflectors = self._reflectors, None
        await stopped(task)
        for pending in [each for watches in self.watches.values() for each in watches]:
            pending.wake()
        await self._api.close()

    def own(self, bucket: str) -> OwnMetadata:
        """Where we write. StoreError if nothing can be written to the bucket."""
        if bucket not in MAPS:
            text = f"Kubernetes has no place for {bucket}, only for {', '.join(MAPS)}"
            raise StoreError(text, transient=False)
        if self._own is None:
            text = "a pod that registers itself needs POD_NAME and POD_UID"
            raise StoreError(text, transient=False)
        return self._own

    async def read(self) -> None:
        """Return once the view is there. StoreError if the server does not let us in."""
        if self._closed:
            raise StoreError("the connection to Kubernetes is closed", transient=False)
        if self._reflectors is None:
            self._refusal = None
            self._synced.clear()
            self._reflectors = asyncio.create_task(self._follow(), name="watches of Kubernetes")
        await self._synced.wait()
        self.raise_refusal()

    def raise_refusal(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._closed:
            raise StoreError("the connection to Kubernetes is closed", transient=False)

    async def _follow(self) -> None:
        namespace = self._config.namespace
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        pods = f"/api/v1/namespaces/{namespace}/pods"
        view, watch_s = self.view, self._config.watch_s
        metadata = Reflector(
            self._api,
            f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}",
            partial(self._notify, "metadata", view.on_metadata_listed, view.on_metadata),
            watch_s=watch_s,
        )
        readiness = Reflector(
            self._api,
            pods if self._config.containers else slices,
            partial(self._notify, "readiness", view.on_readiness_listed, view.on_readiness),
            labels=LABELS,
            watch_s=watch_s,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(metadata.run())
                group.create_task(readiness.run())
        except* StoreError as refusals:
            self._refusal = next(iter(_leaves(refusals)), None)
        finally:
            self._reflectors = None
            self._synced.set()
            for pending in [each for watches in self.watches.values() for each in watches]:
                pending.wake()

    def _notify(
        self,
        what: str,
        on_listed: Callable[..., Changes],
        on_changed: Callable[..., Changes],
        outcome: Outcome,
    ) -> None:
        if isinstance(outcome, Listed):
            changes = on_listed(outcome.objects)
            self._behind.discard(what)
        else:
            changes = on_changed(outcome.found, outcome.deleted)
        for bucket, found in changes.items():
            for pending in self.watches.get(bucket, ()):
                for change in found:
                    pending.add(change)
        if not self._behind:
            self._synced.set()


class KubernetesBucket:
    """One of the maps of all pods' metadata, or a bucket that stays empty."""

    def __init__(self, store: KubernetesStore, name: str) -> None:
        self._store, self.name = store, name

    async def get(self, key: str) -> Entry | None:
        check_name("key", key)
        await self._store.read()
        return self._store.view.entries(self.name).get(key)

    async def entries(self, prefix: str = "") -> Listing:
        await self._store.read()
        return self._listing(prefix)

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        """How often our metadata was written. Other values than JSON objects are refused."""
        own = self._store.own(self.name)
        try:
            return await own.put(self.name, check_name("key", key), normalized(value))
        except ValueError as error:
            text = f"Kubernetes cannot keep {self.name}/{key}: {error}"
            raise StoreError(text[:300], transient=False) from None

    async def create(self, key: str, value: bytes, *, lease: int | None = None) -> int | None:
        raise StoreError("Kubernetes has no keys that are created only once", transient=False)

    async def replace(
        self, key: str, value: bytes, revision: int, *, lease: int | None = None
    ) -> int | None:
        raise StoreError("Kubernetes replaces no key on a condition", transient=False)

    async def delete(self, key: str, revision: int | None = None) -> bool:
        """Only a key of ours."""
        if revision is not None:
            raise StoreError("Kubernetes deletes no key on a condition", transient=False)
        return await self._store.own(self.name).delete(self.name, check_name("key", key))

    async def watch(self, prefix: str = "") -> Watch:
        await self._store.read()
        pending = PendingChanges(prefix)
        watches = self._store.watches.setdefault(self.name, set())
        watches.add(pending)
        try:
            yield self._listing(prefix)
            while True:
                while not pending:
                    self._store.raise_refusal()
                    await pending.wait(None)
                for change in pending.take():
                    yield change
        finally:
            watches.discard(pending)

    def _listing(self, prefix: str) -> Listing:
        found = sorted(self._store.view.entries(self.name).items())
        entries = (entry for key, entry in found if key.startswith(prefix))
        return Listing(tuple(entries), self._store.view.revision)


def _leaves(group: BaseExceptionGroup[StoreError]) -> list[StoreError]:
    found: list[StoreError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
