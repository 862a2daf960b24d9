"""TransferConfig: whether an engine's blocks have contents, and which way they move."""

import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar

from ...base.errors import ConfigError
from ...process.settings import bad_setting, option
from .arena import ArenaLayout
from .interface import Transfer

KINDS = ("nixl", "shm", "none")
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """ConfigError, naming the key, if a value is out of range."""

    GROUP: ClassVar[str] = "Mock engines"

    transfer: str | None = option(
        None,
        "How blocks of prompts move from prefill to decode engines: by NIXL, through shared memory"
        " of one host (shm), or as bookkeeping alone (none). With nixl and shm blocks have"
        " contents, which are checked when they are read. Not given: only the time of a"
        " transfer passes.",
        choices=KINDS,
        short=True,
    )
    transfer_folder: str | None = option(
        None,
        "With shm and none: folder that the engines of a host share; not given: one below /dev/shm"
        " for each user.",
    )
    transfer_block_bytes: int = option(
        16384, "With --transfer: bytes of a block's contents, all ranks of it together."
    )
    transfer_layers: int = option(4, "With --transfer: layers that a block's contents have.")
    tensor_parallel_size: int = option(
        1,
        "With --transfer: ranks among which a block's 8 KV heads are divided; it may differ between"
        " prefill and decode engines.",
    )
    transfer_timeout_s: float = option(
        10.0, "How long the blocks of one prompt may take; then its request fails."
    )
    transfer_lease_s: float = option(
        30.0, "How long a prefill engine keeps a prompt for the decode engine that reads it."
    )

    def __post_init__(self) -> None:
        if self.transfer is not None and self.transfer not in KINDS:
            raise bad_setting("transfer", f"{self.transfer!r} is none of {', '.join(KINDS)}")
        for key in ("transfer_timeout_s", "transfer_lease_s"):
            if not 0 < getattr(self, key) < math.inf:
                raise bad_setting(key, "must be finite and greater than 0")
        _ = self.layout

    @property
    def layout(self) -> ArenaLayout:
        """Of an engine's blocks."""
        try:
            return ArenaLayout(
                self.transfer_block_bytes, self.transfer_layers, tp=self.tensor_parallel_size
            )
        except ConfigError as error:
            key = _SETTINGS.get(error.key or "", error.key or "")
            raise bad_setting(key, str(error).partition(": ")[2]) from None

    @property
    def folder(self) -> Path:
        """The shared folder. ConfigError if there is none and none can be made."""
        given = self.transfer_folder
        if given is not None:
            path = Path(given)
        else:
            parent = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
            path = parent / f"dynamo-router-{os.getuid()}"
            try:
                path.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise bad_setting("transfer_folder", f"{path}: {error.strerror}") from None
        if not path.is_dir() or path.is_symlink():
            raise bad_setting("transfer_folder", f"{path} is no folder")
        if path.stat().st_uid != os.getuid():
            raise bad_setting("transfer_folder", f"{path} belongs to another user")
        return path

    def open(
        self, blocks: int, seconds_of: Callable[[int], float] = lambda size: 0.0
    ) -> Transfer[Any]:
        """One end, for an engine with this number of blocks, on the loop that runs.

        `seconds_of`: how long a number of bytes takes where none are moved. ConfigError if the way
        cannot be used here.
        """
        engine_id = new_engine_id()
        if self.transfer == "nixl":
            from .nixl import NixlTransfer

            return NixlTransfer(engine_id, self.layout, blocks)
        if self.transfer == "shm":
            from .shm import ShmTransfer

            return ShmTransfer(engine_id, self.layout, blocks, folder=self.folder)
        from .none import NoTransfer

        return NoTransfer(engine_id, self.layout, blocks, folder=self.folder, seconds_of=seconds_of)


_SETTINGS = {
    "bytes_per_block": "transfer_block_bytes",
    "layers": "transfer_layers",
    "tp": "tensor_parallel_size",
}


def new_engine_id() -> str:
    """Of a new incarnation of an engine: no two have ever the same."""
    return f"{token_hex(4)}-{token_hex(4)}"
