"""Who a worker is: the noun that every floor above shares."""

from operator import index
from typing import NamedTuple, SupportsIndex

from xxhash import xxh3_64_intdigest

MAX_WORKER_ID = 2**64 - 1
MAX_DP_RANK = 2**32 - 1

# Ids that we make up ourselves stay exact in a double, because they travel through JSON.
_PORTABLE_ID_MASK = 2**53 - 1


class WorkerWithDpRank(NamedTuple):
    """One data-parallel rank of one engine. Equal to, and hashed as, the plain tuple."""

    worker_id: int
    dp_rank: int = 0


def as_worker(worker: SupportsIndex | tuple[SupportsIndex, SupportsIndex]) -> WorkerWithDpRank:
    """The worker that an id (rank 0) or an (id, rank) pair names.

    Raises ValueError if the id does not fit u64, the rank does not fit u32, or the tuple is no
    pair; TypeError if a part is not an integer.
    """
    if type(worker) is WorkerWithDpRank:
        worker_id, dp_rank = worker
    elif isinstance(worker, tuple):
        if len(worker) != 2:
            raise ValueError(f"a worker is (worker_id, dp_rank), not {worker!r}")
        worker_id, dp_rank = index(worker[0]), index(worker[1])
    else:
        worker_id, dp_rank = index(worker), 0
    if not 0 <= worker_id <= MAX_WORKER_ID:
        raise ValueError(f"worker_id {worker_id} is not in 0..2**64-1")
    if not 0 <= dp_rank <= MAX_DP_RANK:
        raise ValueError(f"dp_rank {dp_rank} is not in 0..2**32-1")
    return WorkerWithDpRank(worker_id, dp_rank)


def doubles_of(exact: int) -> tuple[float, float]:
    """What a writer of JSON that knows only doubles makes of an id of 64 bits: JavaScript the
    nearest one, Lua 14 digits of it."""
    return float(exact), float(f"{exact:.14g}")


def is_same_id(written: int | float, exact: int) -> bool:
    """Whether a number in JSON is an id, perhaps rounded to a double by its writer."""
    if written == exact:
        return True
    return 0 <= written <= 2**64 and float(written) in doubles_of(exact)


def address_worker_id(address: str) -> int:
    """The id of an engine that has none of its own, made from its "host:port"; below 2**53.

    It is a hash of the text: "localhost:1" and "127.0.0.1:1" are two workers. ValueError if the
    address has no host or no port.
    """
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise ValueError(f"{address!r} is not host:port")
    return xxh3_64_intdigest(address.encode()) & _PORTABLE_ID_MASK
