"""What decode and prefill engines write to each other: RemotePrefillRequest, version 1, and the
words about one attempt of it. Pure.

The names are those of the design documents; unknown fields are passed over, an unknown version is
refused. Token ids of long prompts travel as base64 of little-endian u32, a third of their JSON.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ...base.errors import UNREADABLE, RouterError
from ..transfer import Grant

VERSION = 1
PACKED_FROM = 1024
"""Prompts of as many tokens have them in `prompt_tokens_b64`."""
MOST_BYTES = 1 << 20
"""Of a message; NATS takes no more unless its operator says so."""
REASONS = (
    "corrupt", "exhausted", "mismatch", "unknown", "unreadable", "unserved", "version",
)  # fmt: skip
"""Why a request is a dead letter. unserved: the engine refuses the prompt."""


class QueueMessageError(RouterError):
    """A request that no worker can do; `reason` is one of REASONS."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class KvLayout(msgspec.Struct, frozen=True):
    """How the decode engine's blocks lie; see ArenaLayout, which says more in its metadata."""

    tp: int
    layers: int
    bytes_per_block: int


class RemotePrefillRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt to be computed, and where its blocks are to go."""

    v: int
    request_id: str
    attempt: str
    """which nothing else has ever been called; words about another attempt count for nothing"""
    engine_id: str
    """of the decode engine, as in its metadata"""
    model: str
    pool: str
    block_size: int
    """tokens"""
    block_ids: tuple[int, ...]
    """of the decode engine, for the whole prompt, a partial block last"""
    computed_block_ids: tuple[int, ...] = ()
    """the first of them, which it has"""
    block_hashes: tuple[str, ...]
    """sequence hashes of all blocks, hexadecimal"""
    kv_layout: KvLayout
    prompt_token_ids: tuple[int, ...] = ()
    prompt_tokens_b64: str = ""
    sampling_params: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"max_tokens": 1, "temperature": 0}
    )
    deadline_ms: int = 0
    """wall clock; for readers of the queue. What counts is the decode engine's answer to `take`"""
    lora_name: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    traceparent: str | None = None
    multimodal_data_source: Mapping[str, str] | None = None

    def token_ids(self) -> npt.NDArray[np.uint32]:
        """QueueMessageError (unreadable) if it has none."""
        try:
            if self.prompt_tokens_b64:
                return np.frombuffer(b64decode(self.prompt_tokens_b64, validate=True), "<u4")
            return np.array(self.prompt_token_ids, dtype=np.uint32)
        except (binascii.Error, ValueError, OverflowError) as error:
            raise QueueMessageError(f"its token ids are none: {error}", "unreadable") from None

    def hashes(self) -> list[int]:
        """QueueMessageError (unreadable) if one is no u64."""
        try:
            found = [int(each, 16) for each in self.block_hashes]
        except ValueError:
            found = [-1]
        if any(not 0 <= each < 2**64 for each in found):
            raise QueueMessageError("its block hashes are none", "unreadable")
        return found


def packed_tokens(tokens: npt.NDArray[np.uint32]) -> dict[str, Any]:
    """The field of a request that has these token ids."""
    if len(tokens) < PACKED_FROM:
        return {"prompt_token_ids": tuple(tokens.tolist())}
    return {"prompt_tokens_b64": b64encode(tokens.astype("<u4").tobytes()).decode()}


def encode_request(request: RemotePrefillRequest) -> bytes:
    """JSON. QueueMessageError (mismatch) if it is longer than a message may be."""
    body = msgspec.json.encode(request)
    if len(body) > MOST_BYTES:
        raise QueueMessageError(f"{len(body)} bytes are more than {MOST_BYTES}", "mismatch")
    return body


class _Version(msgspec.Struct):
    v: int


def read_request(body: bytes) -> RemotePrefillRequest:
    """QueueMessageError: unreadable, version, or mismatch where its lists contradict each other."""
    try:
        version = msgspec.json.decode(body, type=_Version).v
        if version != VERSION:
            raise QueueMessageError(f"version {version}, this engine knows {VERSION}", "version")
        request = msgspec.json.decode(body, type=RemotePrefillRequest)
    except (*UNREADABLE, msgspec.ValidationError) as error:
        raise QueueMessageError(f"no RemotePrefillRequest: {error}", "unreadable") from None
    blocks, computed = request.block_ids, request.computed_block_ids
    if len(request.hashes()) != len(blocks):
        text = f"{len(blocks)} blocks and {len(request.block_hashes)} hashes"
        raise QueueMessageError(text, "mismatch")
    if blocks[: len(computed)] != computed:
        raise QueueMessageError("its computed blocks are not its first ones", "mismatch")
    tokens = len(request.token_ids())
    if request.block_size < 1 or not tokens or -(-tokens // request.block_size) != len(blocks):
        text = f"{len(blocks)} blocks of {request.block_size} for {tokens} tokens"
        raise QueueMessageError(text, "mismatch")
    return request


class Ask(msgspec.Struct, frozen=True):
    """From the prefill engine that has a request, to the decode engine."""

    k: str
    """take: may I, and into which grant? landed: have you the blocks? busy: I compute it; failed:
    I do not, and write no more: these have no answer"""
    attempt: str
    engine_id: str = ""
    """of the prefill engine"""
    grant: str = ""
    """of `busy`, `failed` and `landed`: the attempt of the grant that was given"""
    error: str = ""
    """of `failed`: one of REASONS"""


class Reply(msgspec.Struct, frozen=True):
    """`s`: go, with a grant; landed; or gone: the attempt has ended, one way or the other."""

    s: str
    grant: Grant | None = None
    left_s: float = 0.0
    """how long the decode engine waits from now on"""
    metadata: bytes = b""
    """of the decode engine, for those that do not find it in the store"""


class Cancelled(msgspec.Struct, frozen=True):
    request_id: str
    attempt: str


def read_words(body: bytes, kind: type) -> Any:
    """One of Ask, Reply, Cancelled; None if it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (*UNREADABLE, msgspec.ValidationError):
        return None


def hex_hashes(hashes: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{each:016x}" for each in hashes)
