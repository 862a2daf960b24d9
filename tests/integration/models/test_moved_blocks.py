"""Prompts whose blocks really move from prefill to decode engines, behind a frontend."""

from pathlib import Path
from typing import Any

import pytest
from support.polling import until
from support.servers.discovered_fleet import Backend, registered
from support.servers.model_serving import TINY, ModelClient, model_serving

from dynamo_router.engines.transfer import TransferConfig
from dynamo_router.router.disagg import DisaggConfig

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
