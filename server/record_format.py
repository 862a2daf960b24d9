"""The first line of a record's files, by which readers of traces recognise it.

docs/record.md has all fields.
"""

from typing import Annotated

import msgspec

FORMAT = "dynamo-router record"
VERSION = 1
"""Of the format. A reader refuses another one."""

MOST_TOKENS = 1 << 24
"""Of a prompt or an answer: more than any model takes. A length that is beyond is a damaged one."""
MOST_MS = 10**16
"""More than is written of any time."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=2**20)]


class Fleet(msgspec.Struct, frozen=True, omit_defaults=True):
    """The workers as they are known when a file is begun."""

    worker: str
    blocks: Count = 0
    """of its KV cache; 0: not known"""
    batched_tokens: Count = 0
    """most that a step computes; 0: not known"""


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of each file."""

    format: str
    version: int
    block_size: BlockTokens
    """tokens that a hash stands for"""
    record: str
    """the same in all files whose hashes have one salt"""
    began: str
    """UTC; timestamps are milliseconds since then"""
    engine_block_size: BlockTokens
    process: int = 0
    model: str = ""
    policy: str = ""
    software: str = ""
    workers: tuple[Fleet, ...] = ()
