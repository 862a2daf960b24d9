"""What a key-value store is: buckets of keys, with revisions, leases and watches.

Processes find each other through it. Keys are any text without NUL; values are bytes. Revisions
of one bucket grow with each change of it.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from secrets import randbits
from typing import Protocol, TypeAlias

from ...base.errors import RouterError

LEASE_TTL_S = 10.0
"""How long a registration outlives the process that no longer renews it."""

MAX_VALUE_BYTES = 4 << 20
"""A longer value of a key is passed over; servers of etcd and NATS take about 1 MiB."""
MAX_KEYS = 1 << 16
"""Of a bucket; what is more is passed over."""


class StoreError(RouterError):
    """The store cannot be reached, or refuses. `transient`: trying again later may help."""

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class LeaseLostError(StoreError):
    """The lease has ended, and with it every key that was put under it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value as of `revision`. `lease` is None if it has none, or none is known."""

    key: str
    value: bytes
    revision: int
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """All that a watch's prefix has: its first change, and again where it missed some."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """The key is gone: deleted, or its lease ended."""

    key: str
    revision: int


Change: TypeAlias = Listing | Entry | Deleted
"""An Entry stands for the key's new value."""
Watch: TypeAlias = AsyncGenerator[Change, None]


class Bucket(Protocol):
    """The keys of one kind, such as `v1/instances`: no bucket's name goes on from another's.

    All may raise StoreError; a watch only if it will never go on.
    """

    @property
    def name(self) -> str: ...

    async def get(self, key: str) -> Entry | None: ...

    async def entries(self, prefix: str = "") -> Listing:
        """All keys that begin with `prefix`, in the order of their keys."""
        ...

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        """Write, whatever was there; the new revision. Under `lease` from now on, or none."""
        ...

    async def create(self, key: str, value: bytes, *, lease: int | None = None) -> int | None:
        """Write unless the key exists: then None."""
        ...

    async def replace(
        self, key: str, value: bytes, revision: int, *, lease: int | None = None
    ) -> int | None:
        """Write if the key stands at `revision`, else None."""
        ...

    async def delete(self, key: str, revision: int | None = None) -> bool:
        """Take the key away, if it is there, and stands at `revision` if one is given."""
        ...

    def watch(self, prefix: str = "") -> Watch:
        """A Listing, then every change of keys that begin with `prefix`, in order, without end.

        Where the store is away it waits and goes on from where it was. If changes were missed for
        good there is a Listing again, which stands for all of them. A slow reader may find
        several changes of one key as its last. Close it with `aclose()`.
        """
        ...


class KeyValueStore(Protocol):
    """A connection to a store, owned by one event loop."""

    def bucket(self, name: str) -> Bucket: ...

    async def grant(self, ttl_s: float = LEASE_TTL_S, lease: int | None = None) -> int:
        """A new lease, which ends `ttl_s` seconds after it was last renewed; its id.

        With `lease` it has that id: one that we had. If it has not ended, it is renewed.
        """
        ...

    async def renew(self, lease: int) -> float:
        """Keep the lease; the seconds it has now. LeaseLostError if it has ended."""
        ...

    async def revoke(self, lease: int) -> None:
        """End the lease and delete its keys. Nothing if it has ended."""
        ...

    async def close(self) -> None:
        """Let go of everything; leases are left to their end. Idempotent."""
        ...


def new_lease_id() -> int:
    """A random id below 2**53: ids travel through JSON, whose readers may have doubles."""
    return randbits(53) or 1


def check_name(what: str, name: str) -> str:
    """`name` as a key or a bucket; ValueError if it can be none."""
    if not name or "\0" in name:
        raise ValueError(f"a {what} is a text without NUL, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a {what} is UTF-8, which {name!r} has no form in") from None
    return name
