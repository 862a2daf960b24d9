"""BlockArena: the memory of an engine's KV blocks, with contents that a reader can check.

A block is laid out as engines under tensor parallelism have it: each rank has the block's layers,
and of each layer the KV heads that are the rank's. Every head of every layer has contents of its
own, 8 bytes repeated, made of the block's hash: a block that is another one's, was written in part,
or whose heads went to the wrong ranks shows at the first read.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from ...base.errors import ConfigError

WORD = 8
_HEAD_SHIFT = 32


class ArenaLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """How a block lies in memory. ConfigError, naming the key, if it cannot be divided so."""

    bytes_per_block: int = 16384
    """of all ranks together"""
    layers: int = 4
    heads: int = 8
    tp: int = 1
    """ranks of tensor parallelism, each with memory of its own"""

    def __post_init__(self) -> None:
        for key in ("bytes_per_block", "layers", "heads", "tp"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}: must be at least 1", key=key)
        if self.heads % self.tp:
            raise ConfigError(f"tp: {self.heads} KV heads are not divided by {self.tp}", key="tp")
        piece = WORD * self.layers * self.heads
        if self.bytes_per_block % piece:
            text = f"bytes_per_block: {self.bytes_per_block} is no multiple of {piece}, 8 bytes"
            raise ConfigError(f"{text} of each head and layer", key="bytes_per_block")

    @property
    def rank_heads(self) -> int:
        """KV heads of a rank."""
        return self.heads // self.tp

    @property
    def head_words(self) -> int:
        """Words of 8 bytes of one head in one layer of one block."""
        return self.bytes_per_block // (WORD * self.layers * self.heads)

    @property
    def rank_shape(self) -> tuple[int, int, int]:
        """Of a block at one rank, in words: layers, heads, words of a head."""
        return (self.layers, self.rank_heads, self.head_words)

    @property
    def rank_bytes(self) -> int:
        """Bytes of a block at one rank."""
        return self.bytes_per_block // self.tp

    @cached_property
    def marks(self) -> npt.NDArray[np.uint64]:
        """What each head of each layer adds to a block's hash: shape (tp, layers, rank heads)."""
        layer = np.arange(self.layers, dtype=np.uint64)[:, None]
        head = np.arange(self.heads, dtype=np.uint64) << np.uint64(_HEAD_SHIFT)
        marks = (layer | head).reshape(self.layers, self.tp, self.rank_heads)
        return np.ascontiguousarray(marks.transpose(1, 0, 2))

    def why_not_to(self, other: "ArenaLayout") -> str | None:
        """Why blocks of this layout are none of the other's; None: they are, at any two `tp`."""
        for key in ("bytes_per_block", "layers", "heads"):
            ours, theirs = getattr(self, key), getattr(other, key)
            if ours != theirs:
                return f"its {key} is {theirs}, not {ours}"
        return None

    def shared_heads(self, other: "ArenaLayout") -> Iterator[tuple[int, slice, int, slice]]:
        """For two layouts that fit: (rank here, its heads, rank there, its heads) of every range of
        heads that lies in one rank on both sides."""
        for rank in range(self.tp):
            for theirs in range(other.tp):
                first = max(rank * self.rank_heads, theirs * other.rank_heads)
                end = min((rank + 1) * self.rank_heads, (theirs + 1) * other.rank_heads)
                if first < end:
                    here, there = rank * self.rank_heads, theirs * other.rank_heads
                    ours = slice(first - here, end - here)
                    yield rank, ours, theirs, slice(first - there, end - there)


Words = npt.NDArray[np.uint64]


class BlockArena:
    """The blocks of one engine, by id from 0. It knows neither who holds them nor their hashes."""

    def __init__(self, layout: ArenaLayout, blocks: int, memory: Words | None = None) -> None:
        """`memory`: the words that it has, of shape (words,), if they are shared with others."""
        self.layout, self.blocks = layout, blocks
        shape = (layout.tp, blocks, *layout.rank_shape)
        self.words: Words = np.zeros(shape, np.uint64) if memory is None else memory.reshape(shape)
        """of shape (tp, blocks, layers, heads of a rank, words of a head)"""

    def fill(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        """Write the contents of blocks of these hashes, as computing them does."""
        if len(blocks):
            expected = self._expected(hashes)[..., None]
            for rank in range(self.layout.tp):
                self.words[rank, blocks] = expected[rank]

    def wrong(self, blocks: Sequence[int], hashes: Sequence[int]) -> list[int]:
        """Positions, in these lists, of blocks whose contents are not those of their hashes."""
        if not len(blocks):
            return []
        expected = self._expected(hashes)[..., None]
        good = np.ones(len(blocks), dtype=np.bool_)
        for rank in range(self.layout.tp):
            good &= (self.words[rank, blocks] == expected[rank]).all(axis=(1, 2, 3))
        return np.flatnonzero(~good).tolist()

    def _expected(self, hashes: Sequence[int]) -> Words:
        """Of shape (tp, blocks, layers, heads of a rank)."""
        column = np.asarray(hashes, dtype=np.uint64)[None, :, None, None]
        return column ^ self.layout.marks[:, None]


def runs(ours: Sequence[int], theirs: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Pairs of blocks as pairs of slices: as few as there are stretches that ascend on both sides.

    ValueError if the lists are not of one length.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} blocks here, {len(theirs)} there")
    begin = 0
    for end in range(1, len(ours) + 1):
        length = end - begin
        if (
            end == len(ours)
            or ours[end] != ours[begin] + length
            or theirs[end] != theirs[begin] + length
        ):
            yield (
                slice(ours[begin], ours[begin] + length),
                slice(theirs[begin], theirs[begin] + length),
            )
            begin = end


def copy_blocks(
    source: BlockArena, blocks: Sequence[int], target: BlockArena, others: Sequence[int]
) -> None:
    """Copy blocks of one arena into blocks of another one, whose `tp` may differ."""
    pairs = list(runs(blocks, others))
    for rank, heads, theirs, their_heads in source.layout.shared_heads(target.layout):
        ours, there = source.words[rank], target.words[theirs]
        for here, into in pairs:
            there[into, :, their_heads] = ours[here, :, heads]
