"""A watch on etcd that loses nothing: goes on from its revision, lists again where that is gone."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

import grpc
from aetcd import rpc  # type: ignore[import-untyped]
from structlog import get_logger

from ...base.backoff import Backoff
from ...base.outage_log import OutageLog
from ...process.supervised import is_cancelled
from .etcd_connection import ATTEMPT_S, EtcdConnection
from .store import Change, Deleted, Entry, Listing, StoreError, Watch

log = get_logger(__name__)


class WatchedBucket(Protocol):
    """What a watch needs of its bucket."""

    @property
    def name(self) -> str: ...
    async def entries(self, prefix: str = "") -> Listing: ...
    def readable(self, kv: Any) -> Entry | None: ...
    async def had(self, entry: Entry) -> bool: ...


class _MissedError(Exception):
    """What comes next after the revision we have is not to be had any more."""


async def watch(connection: EtcdConnection, bucket: WatchedBucket, prefix: str) -> Watch:
    """See Bucket.watch."""
    backoff = Backoff()
    revision = None
    newest: Entry | None = None
    broken = False
    away, back = "a watch lost etcd and goes on when it is back", "a watch has etcd again"
    outage = OutageLog(log, away, back)
    while True:
        try:
            if broken and newest is not None and not await bucket.had(newest):
                # Of a cluster that was made anew the revisions may have passed ours already.
                raise _MissedError("etcd has compacted the revision that was read last")
            broken = False
            if revision is None:
                listing = await bucket.entries(prefix)
                revision = listing.revision
                newest = max(listing.entries, key=lambda entry: entry.revision, default=None)
                yield listing
            stream = _Stream(connection, bucket, prefix, revision)
            try:
                await stream.open()
                outage.on_well()
                while True:
                    for change in await stream.next():
                        newest = change if isinstance(change, Entry) else newest
                        yield change
                    revision = stream.revision
                    backoff.reset()
            finally:
                revision = max(revision, stream.revision)
                stream.close()
        except _MissedError as missed:
            log.info("etcd's history is gone, so the keys are listed again", why=str(missed))
            revision, newest = None, None
        except StoreError as error:
            if not error.transient:
                raise
            outage.on_failed(error=str(error))
            broken = True
            await asyncio.sleep(backoff.next())


class _Stream:
    """One call of Watch, on one connection. `revision` is that of the last change it gave."""

    def __init__(
        self, connection: EtcdConnection, bucket: WatchedBucket, prefix: str, revision: int
    ) -> None:
        self._connection, self._bucket = connection, bucket
        self._prefix = f"{bucket.name}/{prefix}".encode()
        self.revision = revision
        self._call: Any = None
        self._member = 0

    async def open(self) -> None:
        """StoreError if etcd does not take it, _MissedError if it cannot go on from there."""
        create = rpc.WatchCreateRequest(
            key=self._prefix,
            range_end=end_of_prefix(self._prefix),
            start_revision=self.revision + 1,
            progress_notify=True,
        )
        self._call, self._member = await self._connection.stream("Watch/Watch")
        try:
            # A call that is cancelled early leaves its writer waiting.
            async with asyncio.timeout(ATTEMPT_S):
                await self._send(rpc.WatchRequest(create_request=create))
                answer = await self._read()
        except TimeoutError:
            raise self._connection.refused("does not take a watch in time", self._member) from None
        if answer.header.revision < self.revision:
            # A cluster that was made anew, or set back: it would be silent until it caught up.
            raise _MissedError(f"etcd stands at {answer.header.revision}, we at {self.revision}")

    async def next(self) -> list[Change]:
        answer = await self._read()
        changes: list[Change] = []
        for event in answer.events:
            if event.type == rpc.Event.DELETE:
                try:
                    key = event.kv.key.decode()[len(self._bucket.name) + 1 :]
                except UnicodeDecodeError:
                    continue
                changes.append(Deleted(key, event.kv.mod_revision))
            elif (entry := self._bucket.readable(event.kv)) is not None:
                changes.append(entry)
        if answer.events:
            self.revision = max(self.revision, answer.events[-1].kv.mod_revision)
        elif not answer.created:
            self.revision = max(self.revision, answer.header.revision)  # a note of progress
        return changes

    def close(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def _send(self, request: Any) -> None:
        try:
            await self._judged(self._call.write(request))
        except grpc.aio.UsageError:
            pass  # it is over already: reading says why

    async def _judged(self, step: Awaitable[Any]) -> Any:
        """A step of the call; what ends the call is a StoreError."""
        try:
            return await step
        except grpc.aio.AioRpcError as error:
            raise self._connection.judge(error, self._member) from None
        except asyncio.CancelledError:
            if is_cancelled() or not self._connection.closed:
                raise  # it is us who are cancelled, not the call
            raise StoreError("the connection to etcd is closed", transient=False) from None

    async def _read(self) -> Any:
        answer = await self._judged(self._call.read())
        if answer is grpc.aio.EOF:
            raise StoreError("etcd ended a watch")
        if answer.compact_revision:
            raise _MissedError(f"etcd was compacted up to {answer.compact_revision}")
        if answer.canceled:
            raise self._connection.refused(
                f"cancelled a watch: {answer.cancel_reason}", self._member
            )
        return answer


def end_of_prefix(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, as etcd wants a range's end."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] < 0xFF:
            return prefix[:at] + bytes([prefix[at] + 1])
    return b"\0"  # all keys
