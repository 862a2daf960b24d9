"""The first line of a record's files, by which readers of traces recognise it.

docs/record.md has all fields.
"""

import msgspec

FORMAT = "dynamo-router record"
VERSION = 1
"""Of the format. A reader refuses another one."""


class Fleet(msgspec.Struct, frozen=True, omit_defaults=True):
    """The workers as they are known when a file is begun."""

    worker: str
    blocks: int = 0
    """of its KV cache; 0: not known"""
    batched_tokens: int = 0
    """most that a step computes; 0: not known"""


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of each file."""

    format: str
    version: int
    block_size: int
    """tokens that a hash stands for"""
    record: str
    """the same in all files whose hashes have one salt"""
    began: str
    """UTC; timestamps are milliseconds since then"""
    engine_block_size: int
    process: int = 0
    model: str = ""
    policy: str = ""
    software: str = ""
    workers: tuple[Fleet, ...] = ()
