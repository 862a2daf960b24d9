"""What must not pass: both type checkers refuse every line marked so, and no other."""

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.indexer import RadixTree, block_hashes, compute_block_hash_for_seq
from dynamo_router.router.policy import Candidates, Floats

KvRouterConfig(block_size="16")  # refused
KvRouterConfig(blocksize=16)  # refused
KvRouterConfig().block_size = 32  # refused: frozen
KvRouter(16)  # refused

router = KvRouter(KvRouterConfig())
router.add_worker("http://engine")  # refused
router.best_worker("a prompt")  # refused
router.decide([1, 2], 3)  # refused: request ids are text
router.free()  # refused
router.free("request", 7)  # refused: by name only
router.free("request", output_tokens="7")  # refused
router.overlaps([1, 2])["worker"]  # refused
chosen: str = router.decide([1, 2])  # refused
router.book("request")  # refused

tree = RadixTree(max_blocks="many")  # refused
tree.store(1, [7], [8])  # refused
tree.match("prompt")  # refused
tree.clear_all_blocks(None)  # refused

block_hashes([1, 2])  # refused: of which size?
compute_block_hash_for_seq([1, 2], 16, lora=None)  # refused
hashes: list[str] = compute_block_hash_for_seq([1, 2], 16)  # refused


def by_worker(candidates: Candidates) -> Floats:
    candidates.prompt()  # refused
    return [0.0, 1.0]  # refused
