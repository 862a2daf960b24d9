"""The format of a record: a header, then a line for each request. docs/record.md has the fields.

Pure: what is salted here can be compared within one record, and with nothing else.
"""

from datetime import UTC, datetime
from typing import Any

from ...base.package_version import package_version
from ..dispatch import Request
from ..record_format import FORMAT, VERSION, Header
from ._line import line_of
from ._salting import siphash_of

LEAST_BLOCK_TOKENS = 64
"""Least tokens of a hash: smaller blocks of the engines are taken together."""
NAME_DIGITS = 12


class Salt:
    """What hides block hashes, sessions and tenants in one record. Its key is written nowhere.

    `began_at` is the monotonic time of the record's begin, `began` the same by the wall clock.
    """

    def __init__(self, key: bytes, began_at: float, began: float) -> None:
        self._key = key
        self.began_at = began_at
        self.began = datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds")

    def name(self, text: str) -> str:
        """A name in place of a name."""
        data = text.encode("utf-8", "surrogatepass")
        return f"{siphash_of(data, self._key):016x}"[:NAME_DIGITS]

    def line(
        self,
        request: Request,
        arrived: float,
        ended: float,
        status: str,
        step: int,
        unique: int,
    ) -> bytes:
        """A request that ended as a line, newline included. What is not known has no field.

        Times are seconds of the monotonic clock; `step` and `unique`: see the kernel.
        """
        return line_of(request, arrived, ended, status, self.began_at, step, unique, self._key)


def blocks_to_hash(engine_block_size: int) -> int:
    """How many blocks of an engine's one hash of the record stands for."""
    return -(-LEAST_BLOCK_TOKENS // engine_block_size)


def new_header(salt: Salt, engine_block_size: int, model: str, **more: Any) -> Header:
    return Header(
        FORMAT,
        VERSION,
        blocks_to_hash(engine_block_size) * engine_block_size,
        salt.name(f"record of {model}"),
        salt.began,
        engine_block_size,
        model=model,
        software=package_version(),
        **more,
    )
