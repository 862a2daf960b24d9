"""What the router needs of an engine's client, whatever its dialect.

Requests and answers are those of trtllm.TrtllmService, serialized; failures are EngineCallErrors.
"""

from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from ..channels import EngineCall, Metadata
from ..engine_facts import EngineFacts
from ..registry import WorkerEntry
from ..trtllm_client import EngineIdentity

DP_RANK_KEY = "x-dynamo-dp-rank"
"""Metadata that says which rank of a worker a call is for, or was answered by."""


def rank_metadata(worker: WorkerEntry | None, dp_rank: int) -> Metadata:
    """What tells a worker of several ranks which one is meant; nothing for one of one rank."""
    if worker is None or worker.dp_size == 1:
        return ()
    return ((DP_RANK_KEY, str(dp_rank)),)


AnyJson: TypeAlias = dict[str, msgspec.Raw]
"""An object whose parts were not read."""


@runtime_checkable
class ForwardingClient(Protocol):
    """An EngineClient whose engine has routes that we know nothing of."""

    async def forward(
        self,
        path: str,
        body: AnyJson,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> bytes:
        """The answer to what is posted to a path, the engine's own name of its model in it."""
        ...


class EngineClient(Protocol):
    """The way to one engine. `timeout` is in seconds; see TrtllmClient for what each call is."""

    address: str

    @property
    def dialect(self) -> str:
        """What the engine speaks: trtllm, vllm, sglang, openengine, dynamo or openai."""
        ...

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> EngineCall: ...

    async def prefetch(
        self, request: bytes, *, timeout: float, metadata: Metadata | None = None
    ) -> int | None: ...
    async def embed(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> bytes: ...
    def get_tokenizer(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> EngineCall: ...
    async def clear_kv_blocks(self, *, timeout: float) -> None: ...
    async def check_health(self, *, timeout: float) -> EngineIdentity: ...
    async def describe(self, *, timeout: float) -> tuple[EngineIdentity, EngineFacts]: ...
    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]: ...
    async def close(self) -> None: ...
