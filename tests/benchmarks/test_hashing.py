"""Block hashes of a prompt of 8192 tokens: from an array, from a list, and by Dynamo."""

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dynamo_router.bench.workbench.index.rivals import dynamo_core
from dynamo_router.indexer.hashing import (
    block_hashes,
    compute_block_hash_for_seq,
    sequence_hashes,
)

PROMPT = np.arange(8192, dtype=np.uint32) * np.uint32(7919) % np.uint32(32_000)
TOKENS = PROMPT.tolist()
block_sizes = pytest.mark.parametrize("block_size", [16, 64])


@block_sizes
def test_block_hashes_of_an_array(benchmark: BenchmarkFixture, block_size: int) -> None:
    assert len(benchmark(block_hashes, PROMPT, block_size)) == 8192 // block_size


@block_sizes
def test_block_hashes_of_a_list(benchmark: BenchmarkFixture, block_size: int) -> None:
    hashes = benchmark(compute_block_hash_for_seq, TOKENS, block_size)
    assert list(hashes) == block_hashes(PROMPT, block_size).tolist()


@pytest.mark.skipif(dynamo_core() is None, reason="Dynamo's wheel is not installed")
@block_sizes
def test_block_hashes_of_a_list_by_dynamo(benchmark: BenchmarkFixture, block_size: int) -> None:
    hashes = benchmark(dynamo_core().compute_block_hash_for_seq, TOKENS, block_size)
    assert list(hashes) == block_hashes(PROMPT, block_size).tolist()


@block_sizes
def test_sequence_hashes(benchmark: BenchmarkFixture, block_size: int) -> None:
    blocks = block_hashes(PROMPT, block_size)
    assert len(benchmark(sequence_hashes, blocks)) == len(blocks)
