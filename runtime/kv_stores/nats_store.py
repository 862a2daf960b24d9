"""A key-value store on NATS JetStream: a stream per bucket, leases by messages that expire."""

import asyncio
import math
import time
from dataclasses import dataclass, field

from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from .nats_address import NatsAddress
from .nats_connection import STREAM_IN_USE, NatsConnection, refusal
from .nats_messages import EXPECTED, LEASE, MARKER_TTL_S, OPERATION, BucketSubjects, Record
from .nats_watch import NatsWatch
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

_WRONG_LAST_SEQUENCE = (10071, 10164)
_NO_STREAM = 10059


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    ends: float
    renewals: dict[str, int] = field(default_factory=dict)
    """bucket to the revision at which the lease stands there"""


class NatsStore:
    """One client of NATS. Connects when it is first used."""

    def __init__(self, address: NatsAddress | None = None) -> None:
        self._connection = NatsConnection(address or NatsAddress.from_environment())
        self._leases: dict[int, _Lease] = {}
        self._buckets: dict[str, NatsBucket] = {}

    def bucket(self, name: str) -> "NatsBucket":
        check_name("bucket", name)
        if name not in self._buckets:
            self._buckets[name] = NatsBucket(self, self._connection, name)
        return self._buckets[name]

    async def grant(self, ttl_s: float = LEASE_TTL_S, lease: int | None = None) -> int:
        """NATS counts in whole seconds: the next above `ttl_s`. Written with the first key."""
        await self._connection.link()
        lease = lease or new_lease_id()
        held = self._leases.get(lease)
        if held is not None and time.monotonic() < held.ends:
            await self.renew(lease)
        else:
            self._leases[lease] = _Lease(math.ceil(ttl_s), time.monotonic() + math.ceil(ttl_s))
        return lease

    async def renew(self, lease: int) -> float:
        held = self._held(lease)
        begun = time.monotonic()
        for bucket, revision in list(held.renewals.items()):
            found = await self.bucket(bucket).write_lease(lease, held.ttl_s, revision)
            if found is None:
                await self.revoke(lease)
                raise LeaseLostError(f"the lease {lease:x} has ended")
            held.renewals[bucket] = found
        held.ends = begun + held.ttl_s
        return float(held.ttl_s)

    async def revoke(self, lease: int) -> None:
        held = self._leases.pop(lease, None)
        for bucket in held.renewals if held else ():
            await self.bucket(bucket).end_lease(lease)

    async def close(self) -> None:
        await self._connection.close()

    async def bring_lease(self, lease: int, bucket: "NatsBucket") -> None:
        """Write a lease to the bucket before a key is put under it. LeaseLostError if it ended."""
        held = self._held(lease)
        if bucket.name not in held.renewals:
            ttl = max(1, math.ceil(held.ends - time.monotonic()))
            revision = await bucket.write_lease(lease, ttl, None)
            assert revision is not None
            held.renewals[bucket.name] = revision

    def _held(self, lease: int) -> _Lease:
        held = self._leases.get(lease)
        if held is None or time.monotonic() >= held.ends:
            self._leases.pop(lease, None)
            raise LeaseLostError(f"the lease {lease:x} has ended")
        return held


class NatsBucket:
    """A bucket of a NatsStore. Its stream is made when it is first used."""

    def __init__(self, store: NatsStore, connection: NatsConnection, name: str) -> None:
        self._store, self._connection, self.name = store, connection, name
        self._subjects = BucketSubjects(name)
        self._made = False
        self._making = asyncio.Lock()

    async def get(self, key: str) -> Entry | None:
        found = await self._last(self._subjects.key(check_name("key", key)))
        return await self._if_there(found)

    async def entries(self, prefix: str = "") -> Listing:
        watch = self.watch(prefix)
        try:
            listing = await anext(watch)
        finally:
            await watch.aclose()
        assert isinstance(listing, Listing)
        return listing

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        revision = await self._publish_key(key, value, lease, None)
        assert revision is not None
        return revision

    async def create(self, key: str, value: bytes, *, lease: int | None = None) -> int | None:
        expected = 0
        while True:
            revision = await self._publish_key(key, value, lease, expected)
            if revision is not None:
                return revision
            found = await self._last(self._subjects.key(key))
            if await self._if_there(found) is not None:
                return None
            expected = found.revision if found else 0  # what is left of one that is gone

    async def replace(
        self, key: str, value: bytes, revision: int, *, lease: int | None = None
    ) -> int | None:
        found = await self.get(key)
        if found is None or found.revision != revision:
            return None
        return await self._publish_key(key, value, lease, revision)

    async def delete(self, key: str, revision: int | None = None) -> bool:
        while True:
            found = await self.get(key)
            if found is None or revision not in (None, found.revision):
                return False
            if await self.bury(found):
                return True

    async def watch(self, prefix: str = "") -> Watch:
        watch = NatsWatch(self._connection, self._subjects, prefix, self.make, self._doubt)
        try:
            while True:
                for change in await watch.next():
                    yield change
                for entry in watch.take_dead():
                    await self._bury_quietly(entry)
        finally:
            await watch.close()

    async def bury(self, entry: Entry) -> bool:
        """Delete a key that stands as `entry` says; False if it no longer does."""
        headers = {OPERATION: "DEL"}
        subject = self._subjects.key(entry.key)
        return await self._publish(subject, b"", headers, entry.revision, MARKER_TTL_S) is not None

    async def write_lease(self, lease: int, ttl_s: int, expected: int | None) -> int | None:
        """Let a lease live for `ttl_s` from now, if it stands at `expected`."""
        return await self._publish(self._subjects.lease(lease), b"", {}, expected, ttl_s)

    async def end_lease(self, lease: int) -> None:
        await self._publish(self._subjects.lease(lease), b"", {OPERATION: "DEL"}, None, 1)

    async def make(self) -> None:
        """Make the bucket's stream, unless it is there."""
        if self._made:
            return
        async with self._making:
            config = self._subjects.config()
            try:
                await self._connection.call(lambda streams: streams.add_stream(config))
            except APIError as error:
                if error.err_code != STREAM_IN_USE:
                    raise self._refused(error) from None
                await self._check_other()
            self._made = True

    async def _check_other(self) -> None:
        """The stream that is there has other settings, of who runs NATS. StoreError, not transient,
        if it is no bucket of ours with them."""

        async def look(streams: JetStreamContext) -> str:
            info = await streams.stream_info(self._subjects.stream)
            return self._subjects.why_other(info.config)

        try:
            why = await self._connection.call(look)
        except APIError as error:
            raise self._refused(error) from None
        if why:
            raise StoreError(f"NATS: the bucket {self.name} {why}", transient=False)

    async def _publish_key(
        self, key: str, value: bytes, lease: int | None, expected: int | None
    ) -> int | None:
        subject = self._subjects.key(check_name("key", key))
        headers = {}
        if lease is not None:
            await self._store.bring_lease(lease, self)
            headers[LEASE] = f"{lease:x}"
        return await self._publish(subject, value, headers, expected, None)

    async def _publish(
        self,
        subject: str,
        value: bytes,
        headers: dict[str, str],
        expected: int | None,
        ttl_s: int | None,
    ) -> int | None:
        """The revision, or None if the subject does not stand at `expected`."""
        await self.make()
        if expected is not None:
            headers = {**headers, EXPECTED: str(expected)}
        try:
            answer = await self._connection.call(
                lambda streams: streams.publish(
                    subject, value, stream=self._subjects.stream, headers=headers, msg_ttl=ttl_s
                )
            )
        except APIError as error:
            if error.err_code in _WRONG_LAST_SEQUENCE and expected is not None:
                return None
            raise self._refused(error) from None
        except StoreError:
            self._doubt()
            raise
        return answer.seq

    async def _last(self, subject: str) -> Record | None:
        await self.make()
        try:
            message = await self._connection.call(
                lambda streams: streams.get_last_msg(self._subjects.stream, subject)
            )
        except NotFoundError as error:
            if error.err_code == _NO_STREAM:
                self._doubt()
            return None
        except APIError as error:
            raise self._refused(error) from None
        return self._subjects.read_stored(message)

    async def _if_there(self, found: Record | None) -> Entry | None:
        entry = found.entry if found else None
        if entry is None or entry.lease is None:
            return entry
        lease = await self._last(self._subjects.lease(entry.lease))
        return entry if lease is not None and lease.entry is not None else None

    async def _bury_quietly(self, entry: Entry) -> None:
        try:
            await self.bury(entry)
        except StoreError:
            pass  # it is invisible as it is

    def _doubt(self) -> None:
        """Its stream may be gone: it was deleted, or NATS came back without its data."""
        self._made = False

    def _refused(self, error: APIError) -> StoreError:
        if isinstance(error, NotFoundError):
            self._doubt()
        return refusal(self.name, error)
