from ...runtime.identity import WorkerWithDpRank
from ._radix import RadixTree

def read_edges(
    tree: RadixTree,
) -> list[tuple[int, int, int, list[int], list[int], list[tuple[WorkerWithDpRank, int]]]]: ...
def read_aliases(tree: RadixTree) -> dict[tuple[WorkerWithDpRank, int], int]: ...
