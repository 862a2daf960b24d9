"""Mock engines whose blocks have contents: what they keep, hand over, read and refuse."""

import asyncio
import errno
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from support.mock_requests import request
from support.polling import until

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import ConfigError, InvalidRequestError, WorkerError
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.disaggregation import DisaggregationRole, Handoff
from dynamo_router.engines.mocker.handovers import BlockMoves, RankTransfers
from dynamo_router.engines.mocker.live import LiveEngine
from dynamo_router.engines.mocker.queued_prefills import _Computer
from dynamo_router.engines.mocker.served import ServedMock
from dynamo_router.engines.serving.request import EngineRequest
from dynamo_router.engines.transfer import TransferConfig, TransferMetrics
from dynamo_router.workers.dialects import CONTEXT_ONLY

BLOCK = 16
PROMPT = range(100, 100 + 6 * BLOCK + 5)  # six blocks, and a part of one


class Mock:
    """A served mock engine with its metrics."""

    def __init__(self, mode: str, folder: Path, engine: dict[str, Any], **moves: Any) -> None:
        self.metrics = TransferMetrics()
        settings = {"transfer": "shm", "transfer_folder": str(folder), **moves}
        self.moves = BlockMoves(
            TransferConfig(**settings), self.metrics, hands_over=mode == "prefill"
        )
        role = DisaggregationRole(mode, 7, "m", BLOCK)
        config = EngineConfig(**{"block_size": BLOCK, "num_gpu_blocks": 64, **engine})
        self.served = ServedMock(
            config,
            speedup_ratio=1000.0,
            clock=SystemClock(),
            role=lambda: role,
            moves=self.moves,
        )
        self.mode = mode

    @property
    def live(self) -> LiveEngine:
        return self.served.ranks.ranks[0]

    @property
    def rank(self) -> RankTransfers:
        return self.moves.ranks[0]

    async def ask(self, tokens: Any = PROMPT, request_id: str = "r1", **more: Any) -> list[Any]:
        """The parts of an answer."""
        phase = {"prefill": CONTEXT_ONLY, "decode": 2}.get(self.mode)
        asked: EngineRequest = request(request_id, tokens, 3, phase=phase, **more)
        answer = self.served.generate(asked)
        try:
            return [part async for part in answer]
        finally:
            await answer.aclose()

    async def hand_over(self, request_id: str = "r1", tokens: Any = PROMPT) -> bytes:
        parts = await self.ask(tokens, request_id)
        handoff: bytes = parts[-1].handoff
        return handoff

    def failures(self) -> str:
        return self.metrics.text().decode()


@asynccontextmanager
async def mock(mode: str, folder: Path, **more: Any) -> AsyncIterator[Mock]:
    moves = {key: more.pop(key) for key in list(more) if key.startswith(("transfer", "tensor"))}
    made = Mock(mode, folder, more, **moves)
    await made.served.start(lambda rank, events: None)
    try:
        yield made
    finally:
        await made.served.stop()


async def test_a_prompt_goes_over_and_is_read_whole(tmp_path: Path) -> None:
    async with mock("prefill", tmp_path) as first, mock("decode", tmp_path) as then:
        handoff = await first.hand_over()
        assert first.live.engine.kept == 1 and first.live.engine.active_blocks == 7
        parts = await then.ask(handoff=handoff)
        assert sum(len(part.tokens) for part in parts) == 3
        contents = then.rank.contents
        assert (contents.checked, contents.corrupt) == (7, 0)
        await until(lambda: not first.live.engine.kept)
        assert first.live.engine.active_blocks == 0
        # What it has of the prompt does not come again; the part of a block does.
        handoff = await first.hand_over("r2")
        await then.ask(request_id="r2", handoff=handoff)
        page = then.failures()
        assert 'transfer_bytes_total{direction="read",transfer="shm"} 131072.0' in page  # 7 + 1
        assert 'outcome="done",transfer="shm"} 2.0' in page
    assert list(tmp_path.iterdir()) == []


async def test_a_prefix_from_the_own_cache_is_read_too(tmp_path: Path) -> None:
    async with mock("agg", tmp_path) as made:
        await made.ask()
        assert made.rank.contents.checked == 0, "computed, not read"
        await made.ask(request_id="r2")
        assert made.rank.contents.checked == 6
        arena = made.rank.transfer.arena
        arena.words[0, made.rank.contents.blocks_of(made.rank.contents._blocks)[2], 1, 0, 0] = 1
        with pytest.raises(WorkerError, match="KV_CORRUPT: 1 of the prompt's 6 cached blocks"):
            await made.ask(request_id="r3")
        assert "dynamo_router_kv_corrupt_total 1.0" in made.failures()
        await made.ask(request_id="r4")  # it was computed again
        assert made.rank.contents.corrupt == 1


async def test_a_block_that_is_overwritten_before_it_is_read_shows(tmp_path: Path) -> None:
    async with mock("prefill", tmp_path) as first, mock("decode", tmp_path) as then:
        handoff = await first.hand_over()
        first.rank.transfer.arena.words[0, 3] = 5
        with pytest.raises(WorkerError, match="KV_CORRUPT: 1 of the prompt's 7 handed over"):
            await then.ask(handoff=handoff)
        assert then.rank.contents.corrupt == 1
        await until(lambda: not then.live.busy)
        assert then.live.engine.active_blocks == 0


async def test_a_lease_ends_and_late_readers_are_refused(tmp_path: Path) -> None:
    async with (
        mock("prefill", tmp_path, transfer_lease_s=0.05, num_gpu_blocks=8) as first,
        mock("decode", tmp_path) as then,
    ):
        handoff = await first.hand_over()
        await until(lambda: not first.live.engine.kept)
        assert first.rank.expired == 1
        await first.ask(range(1000, 1000 + len(PROMPT)), "r2")  # takes the blocks
        with pytest.raises(WorkerError, match="did not come .stale."):
            await then.ask(handoff=handoff)
        assert then.rank.transfer.grants.free_blocks == 64
        assert 'outcome="stale"' in then.failures()


async def test_a_queued_prompt_that_is_given_up_as_it_is_computed_is_not_kept(
    tmp_path: Path,
) -> None:
    asked = cast(
        Any,
        SimpleNamespace(
            request_id="r1", attempt="a", lora_name=None, cache_salt=None,
            token_ids=lambda: np.array(PROMPT, np.uint32),
        ),
    )  # fmt: skip
    async with mock("prefill", tmp_path) as first:

        async def compute() -> None:
            async with _Computer(first.served).compute(asked):
                raise AssertionError("it was given up before")

        computing = asyncio.create_task(compute())
        on_kept = first.rank.on_kept

        def give_up(number: int, sequence: Any) -> None:
            on_kept(number, sequence)
            computing.cancel()

        first.rank.on_kept = give_up  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await computing
        assert first.live.engine.kept == 0
        assert first.rank.held() == {"granted": 0, "kept": 0, "quarantined": 0}


async def test_what_is_kept_takes_capacity_until_it_is_read(tmp_path: Path) -> None:
    async with (
        mock("prefill", tmp_path, num_gpu_blocks=8) as first,
        mock("decode", tmp_path) as then,
    ):
        handoff = await first.hand_over()
        waiting = asyncio.create_task(first.hand_over("r2", range(1000, 1100)))
        await until(lambda: first.live.engine.waiting)
        with pytest.raises(WorkerError, match="keeps 1 prompts for their readers"):
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await first.served.clear_kv_blocks()
        waiting = asyncio.create_task(first.hand_over("r3", range(1000, 1100)))
        await until(lambda: first.live.engine.waiting)
        assert not waiting.done()
        await then.ask(handoff=handoff)
        assert await waiting


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"offer": None}, "comes without blocks"),
        ({"metadata": None}, "unknown.*no metadata of engine"),
        ({"metadata": b"torn"}, "version.*no metadata"),
    ],
)
async def test_a_handoff_that_cannot_be_read_fails_its_request(
    change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    async with mock("prefill", tmp_path) as first, mock("decode", tmp_path) as then:
        given = msgspec.json.decode(await first.hand_over(), type=Handoff)
        handoff = msgspec.json.encode(msgspec.structs.replace(given, **change))
        with pytest.raises(WorkerError, match=f"did not come .*{text}"):
            await then.ask(handoff=handoff)
        assert then.live.engine.active_blocks == 0
        assert then.rank.transfer.grants.free_blocks == 64
        whole = msgspec.json.encode(given)
        with pytest.raises(InvalidRequestError, match="prompt_tokens is 101, not 102"):
            await then.ask(range(102), "r2", handoff=whole)
        offer = given.offer
        assert offer is not None
        short = msgspec.structs.replace(offer, blocks=offer.blocks[1:])
        bad = msgspec.json.encode(msgspec.structs.replace(given, offer=short))
        with pytest.raises(WorkerError, match="6 blocks are offered, the prompt has 7"):
            await then.ask(request_id="r3", handoff=bad)


async def test_metadata_of_another_incarnation_are_no_engines(tmp_path: Path) -> None:
    async with (
        mock("prefill", tmp_path) as first,
        mock("prefill", tmp_path) as other,
        mock("decode", tmp_path) as then,
    ):
        given = msgspec.json.decode(await first.hand_over(), type=Handoff)
        metadata = other.rank.transfer.export()
        handoff = msgspec.json.encode(msgspec.structs.replace(given, metadata=metadata))
        with pytest.raises(WorkerError, match="did not come .stale."):
            await then.ask(handoff=handoff)
    async with mock("decode", tmp_path) as then:
        with pytest.raises(WorkerError, match="did not come .dead."):
            await then.ask(handoff=msgspec.json.encode(given))


async def test_an_abort_in_mid_transfer_gives_blocks_back_when_nothing_moves(
    tmp_path: Path,
) -> None:
    """The peer's end is open: what is read goes on until its thread has ended."""
    large = {"transfer_block_bytes": 1 << 20, "num_gpu_blocks": 32}
    async with (
        mock("prefill", tmp_path, **large) as first,
        mock("decode", tmp_path, **large) as then,
    ):
        handoff = await first.hand_over(tokens=range(20 * BLOCK))
        asked = asyncio.create_task(then.ask(range(20 * BLOCK), handoff=handoff))
        await until(lambda: then.live._bringing)
        assert await then.served.abort("r1")
        parts = await asked
        assert parts[-1].finish_reason == "cancelled"
        await until(lambda: not then.live._bringing)
        assert then.rank.transfer.grants.free_blocks == 32
        assert then.live.engine.active_blocks == 0
        await until(lambda: not first.live.engine.kept)


async def test_evicted_blocks_give_their_place_to_others(tmp_path: Path) -> None:
    """Many prompts through a small cache: an arena never runs out, and nothing is corrupt."""
    random = np.random.default_rng(5)
    small = {"num_gpu_blocks": 24, "max_num_batched_tokens": 64}
    async with (
        mock("prefill", tmp_path, **small) as first,
        mock("decode", tmp_path, **small) as then,
    ):

        async def one(number: int) -> None:
            tokens = range(int(random.integers(0, 4)) * 1000, 10_000)[: random.integers(1, 150)]
            handoff = await first.hand_over(f"p{number}", tokens)
            await then.ask(tokens, f"d{number}", handoff=handoff)

        for batch in range(12):
            await asyncio.gather(*(one(10 * batch + number) for number in range(5)))
        for each in (first, then):
            assert each.rank.contents.corrupt == 0
            await until(lambda each=each: not each.live.engine.kept)
            held = each.rank.transfer.grants.free_blocks + len(each.rank.contents._blocks)
            assert held == 24 and each.live.engine.active_blocks == 0
        assert then.rank.contents.checked > 100


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"transfer": "pigeon"}, "transfer: 'pigeon' is none of nixl, shm, none"),
        ({"transfer_timeout_s": 0.0}, "transfer_timeout_s: must be finite and greater than 0"),
        ({"transfer_block_bytes": 100}, "transfer_block_bytes: 100 is no multiple of 256"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size: 8 KV heads are not divided by 3"),
        ({"transfer_layers": 0}, "transfer_layers: must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TransferConfig(**settings)


def test_the_classic_profile_takes_no_blocks() -> None:
    with pytest.raises(ConfigError, match="engine_type: classic takes no prompts"):
        MockerConfig(
            engine=EngineConfig(engine_type="classic"), moves=TransferConfig(transfer="shm")
        )


async def test_a_folder_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, text in (
        (tmp_path / "none", "is no folder"),
        (Path("/proc/self"), "transfer_fold"),
    ):
        config = TransferConfig(transfer="shm", transfer_folder=str(folder))
        with pytest.raises(ConfigError, match=text):
            config.open(8)
    huge = TransferConfig(
        transfer="shm", transfer_folder=str(tmp_path), transfer_block_bytes=1 << 40
    )
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda *given: asked.append(given))
    with pytest.raises(ConfigError, match="no 8388608 MiB of blocks"):
        huge.open(8)
    assert not asked, "it would take what is free from all others until it fails"
    assert list(tmp_path.iterdir()) == []


async def test_a_full_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    config = TransferConfig(transfer="shm", transfer_folder=str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        config.open(128)
    mount = next(each for each in tmp_path.parents if os.path.ismount(each))
    told = rf"no 2 MiB of blocks in .*: No space .* \(\d+ MiB .* file system at {mount}\)"
    assert re.search(told, str(caught.value)) and list(tmp_path.iterdir()) == []


async def test_a_missing_nixl_and_a_ucx_without_transport_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = TransferConfig(transfer="nixl")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "nixl", None)
        patch.setitem(sys.modules, "nixl_cu12", None)
        with pytest.raises(ConfigError, match="pip install --no-deps nixl-cu12 nixl"):
            config.open(8)
    pytest.importorskip("nixl")
    monkeypatch.setenv("UCX_TLS", "sm,self")
    with pytest.raises(ConfigError, match="NIXL has no transport here .*UCX_TLS is sm,self"):
        config.open(8)


def test_a_handoff_is_json_that_routers_pass_on() -> None:
    role = DisaggregationRole("prefill", 7, "m", BLOCK)
    assert json.loads(msgspec.json.encode(role.handoff(5, None, b"ab")))["metadata"] == "YWI="
