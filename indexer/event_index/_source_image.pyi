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
