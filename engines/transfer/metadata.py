"""EngineMetadata: what an engine says of its blocks to those that read or write them.

It stands in the store at `{namespace}/nixl_metadata/{engine_id}` under the worker's lease, as the
design documents name it; the value is ours (msgpack).
"""

import re

import msgspec

from ...base.errors import UNREADABLE
from .arena import ArenaLayout
from .interface import VERSION
from .tickets import TransferError

MOST_METADATA_BYTES = 1 << 20
_ENGINE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{8}")


class EngineMetadata(msgspec.Struct, frozen=True):
    """Of one incarnation of an engine."""

    engine_id: str
    kind: str
    """of transfer: shm, nixl or none"""
    layout: ArenaLayout
    blocks: int
    agent_metadata: bytes = b""
    """NIXL's own"""
    base_address: int = 0
    """of the blocks in the memory that its agent has registered"""
    epochs_address: int = 0
    """and of their epochs, 8 bytes each"""
    version: int = VERSION

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


class _Version(msgspec.Struct):
    version: int


def read_metadata(body: bytes, kind: str, ours: ArenaLayout) -> EngineMetadata:
    """A peer's metadata for transfers of this kind. TransferError: version or mismatch."""
    if len(body) > MOST_METADATA_BYTES:
        raise TransferError(f"metadata of {len(body)} bytes", "version")
    try:
        version = msgspec.msgpack.decode(body, type=_Version).version
        if version != VERSION:
            text = f"metadata of version {version}, this engine knows {VERSION}"
            raise TransferError(text, "version")
        metadata = msgspec.msgpack.decode(body, type=EngineMetadata)
    except (*UNREADABLE, msgspec.ValidationError) as error:
        raise TransferError(f"no metadata of an engine: {error}", "version") from None
    if not _ENGINE_ID.fullmatch(metadata.engine_id):
        raise TransferError("no metadata of an engine: its id is none", "version")
    if metadata.kind != kind:
        text = f"engine {metadata.engine_id} moves blocks by {metadata.kind}, this one by {kind}"
        raise TransferError(text, "mismatch")
    why = ours.why_not_to(metadata.layout)
    if why is not None:
        text = f"blocks of engine {metadata.engine_id} do not fit: {why}"
        raise TransferError(text, "mismatch")
    return metadata
