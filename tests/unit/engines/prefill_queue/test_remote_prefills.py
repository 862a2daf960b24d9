"""RemotePrefills, without NATS: who owns the blocks of a prompt whose writer was thought dead."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dynamo_router.engines.prefill_queue import (
    PrefillQueueConfig,
    QueuedPrompt,
    QueueMetrics,
    QueueNames,
    RemotePrefillError,
    RemotePrefills,
)
from dynamo_router.engines.transfer import (
    ArenaLayout,
    BlockGrants,
    BlockState,
    Grant,
    Notification,
    Revocation,
)

BLOCK, BLOCKS = 16, 4


class Unstoppable:
    """A Transfer whose writers cannot be stopped, as NIXL's."""

    engine_id, arena = "d", SimpleNamespace(layout=ArenaLayout())

    def __init__(self) -> None:
        self.grants = BlockGrants(BLOCKS)

    def export(self) -> bytes:
        return b"d"

    async def revoke(self, grant: Grant) -> Revocation:
        quarantined = self.grants.quarantine(grant.attempt)
        return Revocation.QUARANTINED if quarantined else Revocation.UNKNOWN


def remote_prefills(transfer: Unstoppable) -> RemotePrefills:
    async def publish(*message: Any, lasts_s: float) -> int:
        return 1

    async def ignore(*message: Any) -> None: ...

    connection = SimpleNamespace(on_lost=set())
    queue = SimpleNamespace(connection=connection, publish=publish, send=ignore, delete=ignore)
    return RemotePrefills(
        cast(Any, queue),
        QueueNames.of("ns", "model", "pool"),
        PrefillQueueConfig(),
        cast(Any, transfer),
        QueueMetrics(),
        model="model",
    )


def a_prompt(blocks: list[int]) -> QueuedPrompt:
    tokens = np.arange(2 * BLOCK, dtype=np.uint32)
    return QueuedPrompt("r1", tokens, BLOCK, [1, 2], [], blocks)


async def test_whatever_fails_its_engine_is_to_compute_the_prompt() -> None:
    """Also where NATS was lost between the decision for the queue and this."""
    transfer, failures = Unstoppable(), []
    prefills = remote_prefills(transfer)
    prompt = a_prompt(transfer.grants.allocate(2))
    with pytest.raises(RemotePrefillError, match="NATS is away") as failed:
        await prefills.prefill(prompt, failures.append)
    assert failures == [failed.value] and failed.value.reason == "away"
    assert len(prompt.blocks) == 2, "and has its blocks"
    await prefills.close()


async def test_blocks_that_a_late_writer_gives_back_are_their_next_owners() -> None:
    transfer = Unstoppable()
    prefills = remote_prefills(transfer)
    prefills._ready = True  # as once NATS is there
    grants = transfer.grants
    prompt = a_prompt(grants.allocate(2))
    waiting = asyncio.create_task(prefills.prefill(prompt))
    while not prefills._attempts:
        await asyncio.sleep(0)
    (attempt,) = prefills._attempts.values()
    first = await prefills._take(attempt, "w1")
    assert first.grant is not None
    assert (await prefills._take(attempt, "w2")).grant is None, "its first writer may write still"
    late = Notification(first.grant.attempt, status="failed", error="dead")
    prefills.on_notification(late)
    others = grants.allocate(BLOCKS)  # the ones that were quarantined among them
    with pytest.raises(RemotePrefillError, match="thought dead"):
        await waiting
    assert prompt.blocks == [], "they are another prompt's"
    assert {grants.state(each) for each in others} == {BlockState.ALLOCATED}
    await prefills.close()
