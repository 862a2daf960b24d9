"""Bytes that were messages: cut, joined, overwritten. For tests and for the runner."""

import random

# Bytes that mean much: heads of every msgpack type, punctuation of JSON, both ends of the range.
TELLING = [*range(0x7F, 0x100), *b'{}[]",:\\-.0189eEnul \n', 0, 1, 15, 32]


def damage(message: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(message)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(damaged) + 1)
        end = min(len(damaged), at + rng.choice([1, 1, 2, 9, 30]))
        action = rng.randrange(6)
        if action == 0:
            del damaged[at:]
        elif action == 1:
            del damaged[at:end]
        elif action == 2:
            damaged[at:at] = bytes(rng.choice(TELLING) for _ in range(rng.choice([1, 2, 9])))
        elif action == 3:
            damaged[at:end] = bytes(rng.choice(TELLING) for _ in range(end - at))
        elif action == 4 and at < end:
            damaged[at] ^= 1 << rng.randrange(8)
        else:
            damaged[at:at] = damaged[rng.randrange(len(damaged) + 1) :][: rng.choice([1, 13, 57])]
    return bytes(damaged)
