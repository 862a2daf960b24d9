from ...base.identity import WorkerWithDpRank
from ._radix import RadixTree

def read_edges(
    tree: RadixTree,
) -> list[tuple[int, int, int, list[int], list[int], list[tuple[WorkerWithDpRank, int]]]]: ...
def read_aliases(tree: RadixTree) -> dict[tuple[WorkerWithDpRank, int], int]: ...
def list_heaviest(
    tree: RadixTree, looked_at: int, limit: int
) -> list[
    tuple[int | None, int, int, int, int, tuple[tuple[WorkerWithDpRank, int], ...], bool]
]: ...
