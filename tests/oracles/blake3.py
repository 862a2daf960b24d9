"""BLAKE3 of a message of any length, as its specification puts it: slow, and without a library."""

import struct

IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
CHUNK, BLOCK, MASK = 1024, 64, 0xFFFF_FFFF


def rotated(word: int, bits: int) -> int:
    return (word >> bits | word << (32 - bits)) & MASK


def compressed(cv: list[int], block: bytes, counter: int, flags: int) -> list[int]:
    """The next chaining value. The last block may be short: its length is compressed with it."""
    words = list(struct.unpack("<16I", block.ljust(BLOCK, b"\0")))
    length = BLOCK if flags & PARENT else len(block)
    state = [*cv, *IV[:4], counter & MASK, counter >> 32, length, flags]
    for _ in range(7):
        for column, (a, b, c, d) in enumerate(COLUMNS):
            for half, (turn_d, turn_b) in enumerate(((16, 12), (8, 7))):
                state[a] = (state[a] + state[b] + words[2 * column + half]) & MASK
                state[d] = rotated(state[d] ^ state[a], turn_d)
                state[c] = (state[c] + state[d]) & MASK
                state[b] = rotated(state[b] ^ state[c], turn_b)
        words = [words[i] for i in PERMUTATION]
    return [low ^ high for low, high in zip(state[:8], state[8:], strict=True)]


def chunk_value(chunk: bytes, counter: int, root: int) -> list[int]:
    cv = list(IV)
    blocks = [chunk[at : at + BLOCK] for at in range(0, len(chunk), BLOCK)] or [b""]
    for number, block in enumerate(blocks):
        flags = CHUNK_START if number == 0 else 0
        if number == len(blocks) - 1:
            flags |= CHUNK_END | root
        cv = compressed(cv, block, counter, flags)
    return cv


def tree_value(data: bytes, counter: int, root: int) -> list[int]:
    if len(data) <= CHUNK:
        return chunk_value(data, counter, root)
    left = CHUNK  # the largest power of two chunks that leaves something to the right
    while left * 2 < len(data):
        left *= 2
    values = [
        *tree_value(data[:left], counter, 0),
        *tree_value(data[left:], counter + left // CHUNK, 0),
    ]
    return compressed(list(IV), struct.pack("<16I", *values), 0, PARENT | root)


def blake3(data: bytes) -> str:
    """Hexadecimal, 256 bits."""
    return struct.pack("<8I", *tree_value(data, 0, ROOT)).hex()
