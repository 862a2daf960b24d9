"""What our own pod says of itself: written whole each time, by server-side apply."""

import asyncio
from typing import Any

from structlog import get_logger

from .kubernetes_api import ApiError, KubernetesApi
from .pod_identity import PodIdentity
from .worker_metadata import (
    FIELD_MANAGER,
    GROUP,
    PLURAL,
    VERSION,
    manifest,
    name_and_uid,
)

NOT_FOUND, CONFLICT = 404, 409
log = get_logger(__name__)


class OwnMetadata:
    """Our keys by bucket, and the object that holds them. Writes wait for each other."""

    def __init__(self, api: KubernetesApi, identity: PodIdentity) -> None:
        self._api, self.identity = api, identity
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{identity.namespace}/{PLURAL}"
        self._path = f"{path}/{identity.name}"
        self._data: dict[str, dict[str, bytes]] = {}
        self._changes, self._applied = 0, -1
        """how often the data was changed; how often when it was written last"""
        self._writing = asyncio.Lock()
        self._uid = ""

    async def put(self, bucket: str, key: str, value: bytes) -> int:
        """How often it was changed. StoreError if that may not have been written."""
        keys = self._data.setdefault(bucket, {})
        if keys.get(key) != value:
            keys[key] = value
            self._changes += 1
        return await self._write()

    async def delete(self, bucket: str, key: str) -> bool:
        """Whether it was there."""
        if self._data.get(bucket, {}).pop(key, None) is None:
            return False
        self._changes += 1
        await self._write()
        return True

    async def apply(self) -> None:
        """Write what there is, also if that was done before."""
        self._applied = -1
        await self._write()

    async def check(self) -> bool:
        """Whether the object is there; written again if another writer changed it."""
        try:
            found = await self._api.call("GET", self._path)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            self._applied = -1
            return False
        if not self._says_ours(found):
            log.warning("worker metadata was changed by another writer: written again",
                        name=self.identity.name)  # fmt: skip
            await self.apply()
        return True

    async def remove(self) -> None:
        """Delete the object, if it is still the one that we wrote."""
        self._data.clear()
        self._changes += 1
        async with self._writing:
            options = {"kind": "DeleteOptions", "apiVersion": "v1"}
            if self._uid:
                options["preconditions"] = {"uid": self._uid}  # type: ignore[assignment]
            try:
                await self._api.call("DELETE", self._path, body=options)
            except ApiError as error:
                if error.status not in (NOT_FOUND, CONFLICT):
                    raise
            self._applied = -1

    async def _write(self) -> int:
        """Write all changes so far, unless another call just did."""
        async with self._writing:
            changes = self._changes
            if self._applied != changes:
                found = await self._api.call(
                    "PATCH",
                    self._path,
                    {"fieldManager": FIELD_MANAGER, "force": "true"},
                    manifest(self.identity, self._data),
                    "application/apply-patch+yaml",
                )
                self._applied = changes
                self._uid = name_and_uid(found)[1]
            return changes

    def _says_ours(self, found: Any) -> bool:
        spec = found.get("spec") if isinstance(found, dict) else None
        stored = spec.get("data") if isinstance(spec, dict) else None
        wanted = manifest(self.identity, self._data)["spec"]["data"]
        if not isinstance(stored, dict):
            return False
        return all((stored.get(field) or {}) == entries for field, entries in wanted.items())
