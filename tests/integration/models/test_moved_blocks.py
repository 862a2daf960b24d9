"""Prompts whose blocks really move from prefill to decode engines, behind a frontend."""

import asyncio
import signal
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from grpc import aio
from support.fake_engine import prompt
from support.polling import until
from support.processes import command
from support.servers.discovered_fleet import Backend, registered
from support.servers.model_serving import TINY, ModelClient, model_serving

from dynamo_router.engines.transfer import TransferConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.runtime.kv_stores import open_store
from dynamo_router.workers.trtllm_proto import SERVICE, pb

ALWAYS = DisaggConfig(disagg="always")
PROMPT = list(range(100, 185))


def moved(tmp_path: Path, kind: str = "shm", **more: Any) -> TransferConfig:
    return TransferConfig(transfer=kind, transfer_folder=str(tmp_path), **more)


def serving(backend: Backend, role: str, moves: TransferConfig, count: int = 1, **more: Any) -> Any:
    config = {"model_id": "a", "engine": TINY, "disaggregation_mode": role, "moves": moves}
    return registered(backend, count, **config, **more)


async def ready(client: ModelClient, *models: str) -> None:
    """Wait until each model is answered for, by a worker of each role."""

    def there() -> bool:
        pools = [pool for pool in client.server.models.pools if pool.answers]
        return all(any(p.name.model == each and p.share for p in pools) for each in models)

    await until(there)


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
@pytest.mark.parametrize("kind", ["shm", "nixl", "none"])
async def test_an_answer_is_that_of_workers_that_do_both(
    backend: Backend, dialect: str, kind: str, tmp_path: Path
) -> None:
    if kind == "nixl":
        pytest.importorskip("nixl")
    folder = tmp_path / "blocks"
    folder.mkdir()
    asked = {"seed": 3, "max_tokens": 9}
    async with (
        registered(backend, 1, model_id="both", engine=TINY, dialect=dialect),
        serving(
            backend, "prefill", moved(folder, kind, transfer_lease_s=3.0), dialect=dialect
        ) as prefill,
        serving(
            backend, "decode", moved(folder, kind, tensor_parallel_size=2), dialect=dialect
        ) as decode,
        model_serving(backend, disagg=ALWAYS) as client,
    ):
        await ready(client, "a", "both")
        _, plain = await client.complete("both", PROMPT, **asked)
        for _ in range(2):
            status, split = await client.complete("a", PROMPT, **asked)
            assert status == 200, split
            assert split["choices"] == plain["choices"]
        assert split["nvext"]["worker_id"]["prefill_worker_id"] == prefill.worker_ids[0]
        (first,), (then,) = prefill.engines, decode.engines
        (theirs,), (ours,) = first.moves.ranks, then.moves.ranks
        blocks = -(-len(PROMPT) // TINY.block_size)
        assert ours.contents.corrupt == theirs.contents.corrupt == 0
        if kind != "none":
            assert ours.contents.checked >= 2 * blocks
        await until(lambda: not first.engine.kept)  # the reader has ended; a probe's lease, too
        page = decode.metrics.text().decode()
        assert f'transfer_bytes_total{{direction="read",transfer="{kind}"}}' in page
    assert list(folder.iterdir()) == []


async def test_metadata_stand_under_the_lease_of_an_incarnation(
    backend: Backend, tmp_path: Path
) -> None:
    store = open_store(backend.kind, backend.environ)
    bucket = store.bucket("dynamo/nixl_metadata")

    async def ids() -> set[str]:
        return {entry.key for entry in (await bucket.entries()).entries}

    async with serving(backend, "prefill", moved(tmp_path), 2, lease_ttl_s=1.0) as fleet:
        assert await ids() == {each.moves.ranks[0].transfer.engine_id for each in fleet.engines}
        first, other = fleet.engines
        old = first.moves.ranks[0].transfer.engine_id
        await first.restart()
        new = first.moves.ranks[0].transfer.engine_id
        assert new != old and new in await ids()
        await fleet.kill(1)

        async def only_the_new_one() -> bool:
            return await ids() == {new}

        await until(only_the_new_one)
    assert await ids() == set()
    await store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


async def test_serve_hands_over_between_mockers_that_are_in_no_store(tmp_path: Path) -> None:
    """Real processes: metadata go in the parcel. Nothing is left behind."""
    folder = tmp_path / "blocks"
    folder.mkdir()
    words = ("mocker", "--port", "0", "--transfer", "shm", "--transfer-folder", str(folder))
    words += ("--metrics-port", "0", "--num-gpu-blocks", "64", "--block-size", "16")
    words += ("--speedup-ratio", "100", "--disaggregation-mode")
    async with (
        command(tmp_path / "prefill", *words, "prefill") as prefill,
        command(tmp_path / "decode", *words, "decode", "--tensor-parallel-size", "4") as decode,
    ):
        urls = [(await each.says("engine 0:")).split()[2] for each in (prefill, decode)]
        workers = ("--prefill-worker", urls[0], "--worker", urls[1], "--disagg", "always")
        workers += ("--block-size", "16")
        serve = ("serve", "--no-kv-events", "--port", "0", "--http-port", "0", *workers)
        async with command(tmp_path / "serve", *serve) as router:
            address = (await router.says("dynamo-router ready")).split()[3]
            await until(lambda: router.text.count("worker ready") == 2)
            async with aio.insecure_channel(address) as channel:
                for number in range(3):
                    asked = prompt(f"r{number}", 85 + 16 * number)
                    asked.max_tokens = 5
                    generate = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
                    call = generate(asked.SerializeToString(), wait_for_ready=True)
                    answers = [pb.GenerateResponse.FromString(each) async for each in call]
                    assert answers[-1].complete.finish_reason == "length"
            page = await asyncio.to_thread(read_page, (await decode.says("metrics:")).split()[1])
            moved_bytes = (6 + 2 + 2) * 16384  # the part of a block, and what is new
            assert f'{{direction="read",transfer="shm"}} {moved_bytes}.0' in page
            assert "dynamo_router_kv_blocks_checked_total 21.0" in page
            assert "dynamo_router_kv_corrupt_total 0.0" in page
        assert sorted(path.suffix for path in folder.iterdir()) == [".bell", ".bell", ".kv", ".kv"]
        for each in (prefill, decode):
            each.send(signal.SIGTERM)
            await each.says("draining")
        await until(lambda: not list(folder.iterdir()))


def read_page(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        body: str = answer.read().decode()
        return body
