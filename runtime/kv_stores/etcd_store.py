"""A key-value store on etcd v3. A bucket is a prefix: `v1/instances` has the keys below it."""

import asyncio
import math
from typing import Any

import grpc
from aetcd import rpc  # type: ignore[import-untyped]

from .etcd_config import EtcdConfig
from .etcd_connection import ATTEMPT_S, EtcdConnection
from .etcd_watch import end_of_prefix, watch
from .store import (
    LEASE_TTL_S,
    Entry,
    LeaseLostError,
    Listing,
    StoreError,
    Watch,
    check_name,
    new_lease_id,
)

PAGE = 1000


class EtcdStore:
    """One client of an etcd cluster. Connects when it is first used."""

    def __init__(self, config: EtcdConfig | None = None) -> None:
        self._connection = EtcdConnection(config or EtcdConfig.from_environment())

    def bucket(self, name: str) -> "EtcdBucket":
        return EtcdBucket(self._connection, check_name("bucket", name))

    async def grant(self, ttl_s: float = LEASE_TTL_S, lease: int | None = None) -> int:
        """etcd counts in whole seconds: the next above `ttl_s`."""
        lease = lease or new_lease_id()
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s), ID=lease)
        try:
            await self._connection.call("Lease/LeaseGrant", request, again=True)
        except StoreError as error:
            if "lease already exists" not in str(error):
                raise
            await self.renew(lease)  # it had not ended, or this was not the first attempt
        return lease

    async def renew(self, lease: int) -> float:
        stream, member = await self._connection.stream("Lease/LeaseKeepAlive", ATTEMPT_S)
        try:
            async with asyncio.timeout(2 * ATTEMPT_S):
                await stream.write(rpc.LeaseKeepAliveRequest(ID=lease))
                answer = await stream.read()
            if answer is grpc.aio.EOF:
                raise StoreError("etcd ended the call that renews a lease")
        except grpc.aio.AioRpcError as error:
            raise self._connection.judge(error, member) from None
        except TimeoutError:
            raise self._connection.refused("does not renew a lease in time", member) from None
        except grpc.aio.UsageError as error:  # it was over before we wrote
            raise StoreError(f"etcd ended the call that renews a lease: {error}") from None
        finally:
            stream.cancel()
        if answer.TTL <= 0:
            raise LeaseLostError(f"the lease {lease:x} has ended")
        return float(answer.TTL)

    async def revoke(self, lease: int) -> None:
        try:
            request = rpc.LeaseRevokeRequest(ID=lease)
            await self._connection.call("Lease/LeaseRevoke", request, again=True)
        except StoreError as error:
            if "lease not found" not in str(error):
                raise

    async def close(self) -> None:
        await self._connection.close()


class EtcdBucket:
    """The keys below one prefix."""

    def __init__(self, connection: EtcdConnection, name: str) -> None:
        self._connection, self.name = connection, name

    async def get(self, key: str) -> Entry | None:
        answer = await self._connection.call(
            "KV/Range", rpc.RangeRequest(key=self._path(key)), again=True
        )
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def entries(self, prefix: str = "") -> Listing:
        """In pages, all of one revision."""
        first = f"{self.name}/{prefix}".encode()
        found: list[Entry] = []
        start, revision = first, 0
        while True:
            request = rpc.RangeRequest(
                key=start, range_end=end_of_prefix(first), limit=PAGE, revision=revision
            )
            answer = await self._connection.call("KV/Range", request, again=True)
            revision = revision or answer.header.revision
            found += [entry for kv in answer.kvs if (entry := self.readable(kv)) is not None]
            if not answer.more:
                return Listing(tuple(sorted(found, key=lambda entry: entry.key)), revision)
            start = answer.kvs[-1].key + b"\0"

    async def had(self, entry: Entry) -> bool:
        """Whether etcd remembers the entry as of its revision: it is the same cluster still."""
        request = rpc.RangeRequest(key=self._path(entry.key), revision=entry.revision)
        try:
            answer = await self._connection.call("KV/Range", request, again=True)
        except StoreError as error:
            if error.transient:
                raise
            return False  # compacted, or ahead of a cluster that was made anew
        return bool(answer.kvs) and self.readable(answer.kvs[0]) == entry

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        answer = await self._call_with_lease("KV/Put", self._put(key, value, lease), lease)
        return int(answer.header.revision)

    async def create(self, key: str, value: bytes, *, lease: int | None = None) -> int | None:
        return await self._write_if(self._compare(key, 0), self._put(key, value, lease), lease)

    async def replace(
        self, key: str, value: bytes, revision: int, *, lease: int | None = None
    ) -> int | None:
        if revision <= 0:
            return None
        guard = self._compare(key, revision)
        return await self._write_if(guard, self._put(key, value, lease), lease)

    async def delete(self, key: str, revision: int | None = None) -> bool:
        request = rpc.DeleteRangeRequest(key=self._path(key))
        if revision is None:
            answer = await self._connection.call("KV/DeleteRange", request)
            return bool(answer.deleted)
        if revision <= 0:
            return False
        transaction = rpc.TxnRequest(
            compare=[self._compare(key, revision)],
            success=[rpc.RequestOp(request_delete_range=request)],
        )
        return bool((await self._connection.call("KV/Txn", transaction)).succeeded)

    def watch(self, prefix: str = "") -> Watch:
        return watch(self._connection, self, prefix)

    def readable(self, kv: Any) -> Entry | None:
        """A key of etcd as an entry; None if a key below ours is no text."""
        try:
            return self._entry(kv)
        except UnicodeDecodeError:
            return None

    def _entry(self, kv: Any) -> Entry:
        key = kv.key.decode()[len(self.name) + 1 :]
        return Entry(key, kv.value, kv.mod_revision, kv.lease or None)

    def _path(self, key: str) -> bytes:
        return f"{self.name}/{check_name('key', key)}".encode()

    def _put(self, key: str, value: bytes, lease: int | None) -> Any:
        return rpc.PutRequest(key=self._path(key), value=value, lease=lease or 0)

    def _compare(self, key: str, revision: int) -> Any:
        """That a key stands at a revision; at 0 that it does not exist."""
        return rpc.Compare(
            result=rpc.Compare.EQUAL,
            target=rpc.Compare.MOD,
            key=self._path(key),
            mod_revision=revision,
        )

    async def _write_if(self, guard: Any, put: Any, lease: int | None) -> int | None:
        request = rpc.TxnRequest(compare=[guard], success=[rpc.RequestOp(request_put=put)])
        answer = await self._call_with_lease("KV/Txn", request, lease)
        return int(answer.header.revision) if answer.succeeded else None

    async def _call_with_lease(self, method: str, request: Any, lease: int | None) -> Any:
        try:
            return await self._connection.call(method, request)
        except StoreError as error:
            if lease is not None and "lease not found" in str(error):
                raise LeaseLostError(f"the lease {lease:x} has ended") from None
            raise
