from ...base.identity import WorkerWithDpRank
from ..source import CursorImage
from ._actor import IndexActor

def dump_source(
    actor: IndexActor, worker: tuple[int, int]
) -> tuple[CursorImage, int, bytes, bytes, bytes] | None: ...
def restore_source(
    actor: IndexActor,
    worker: tuple[int, int],
    cursor: CursorImage,
    unindexed: int,
    runs: bytes,
    external_hashes: bytes,
    local_hashes: bytes,
) -> bool: ...
def list_heaviest(
    actor: IndexActor, looked_at: int, limit: int
) -> list[
    tuple[int | None, int, int, int, int, tuple[tuple[WorkerWithDpRank, int], ...], bool]
]: ...
