"""A frontend whose models are found by their cards: who answers for which, and what is refused."""

import gc
import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.polling import until
from support.servers.discovered_fleet import Backend, on_stores, registered
from support.servers.jetstream import JetStreamServer
from support.servers.model_serving import TINY, ModelClient, many, model_serving

from dynamo_router.router.config import KvRouterConfig


async def names_of(client: ModelClient) -> list[str]:
    _, body = await client.get("/v1/models")
    return [model["id"] for model in body["data"]]


async def refusals(client: ModelClient) -> list[dict[str, Any]]:
    _, body = await client.get("/pools")
    found: list[dict[str, Any]] = body["refused"]
    return found


@on_stores("file", "etcd")
@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_two_models_in_one_namespace_have_nothing_in_common(
    backend: Backend, dialect: str
) -> None:
    async with (
        registered(backend, 2, model_id="a", engine=TINY, dialect=dialect) as ours,
        registered(backend, 2, model_id="b", engine=TINY, dialect=dialect) as theirs,
        model_serving(backend) as client,
    ):
        await client.until_shares(a=2, b=2)
        assert await names_of(client) == ["a", "b"]
        assert await many(client, "a", 40) == set(ours.worker_ids)
        assert await many(client, "b", 40) == set(theirs.worker_ids)
        status, body = await client.complete("c")
        assert status == 404 and body["error"]["code"] == "model_not_found"
        assert "a, b" in body["error"]["message"]


async def test_a_model_whose_keys_are_the_first_generations_is_served(backend: Backend) -> None:
    async with (
        registered(backend, 2, model_id="a", engine=TINY, dialect="dynamo",
                   key_generation="seed") as ours,
        registered(backend, 1, model_id="a", engine=TINY, dialect="dynamo") as todays,
        model_serving(backend) as client,
    ):  # fmt: skip
        await client.until_shares(a=3)
        assert await many(client, "a", 40) == {*ours.worker_ids, *todays.worker_ids}


async def test_a_model_comes_and_goes_with_its_workers(backend: Backend) -> None:
    async with model_serving(backend) as client:
        assert await names_of(client) == []
        assert (await client.get("/health"))[0] == 503
        async with registered(backend, 1, model_id="a", engine=TINY, aliases="x, y"):
            await client.until_shares(a=1)
            assert await names_of(client) == ["a", "x", "y"]
            assert (await client.get("/health"))[0] == 200
            assert await client.worker_of("y") == await client.worker_of("a")
            _, shown = await client.get("/v1/models/x")
            assert shown["parent"] == "a" and shown["max_model_len"] == 512 * 16
        await until(lambda: not client.server.models.pools)
        assert await names_of(client) == []
        assert (await client.complete("a"))[0] == 404


async def test_cards_that_are_wrong_are_shown_and_get_nothing(backend: Backend) -> None:
    async with (
        registered(backend, 1, model_id="good", engine=TINY) as fleet,
        model_serving(backend) as client,
    ):
        await client.until_shares(good=1)
        cards = Path(backend.environ["DYN_FILE_KV"]) / "v1" / "mdc"
        (card,) = cards.iterdir()
        said = json.loads(card.read_text())
        prefix = "dynamo%2Fbackend%2Fgenerate%2F"
        (cards / f"{prefix}fd").write_text("not JSON")
        bare = {**said["card_json"], "display_name": "bare"}
        del bare["tokenizer"]
        (cards / f"{prefix}fe").write_text(json.dumps({**said, "card_json": bare}))
        lost = json.loads(json.dumps(said))["card_json"]
        lost["display_name"] = "lost"
        lost["tokenizer"]["hf_tokenizer_json"]["checksum"] = "blake3:" + "0" * 64
        (cards / f"{prefix}ff").write_text(json.dumps({**said, "card_json": lost}))

        def reasons() -> dict[str, str]:
            return {pool.name.model: pool.reason for pool in client.server.models.pools}

        await until(lambda: reasons().get("bare") and reasons().get("lost"))
        assert reasons()["bare"] == "the card names no tokenizer"
        assert "checksum" in reasons()["lost"] or "cannot be checked" in reasons()["lost"]
        (junk,) = [each for each in await refusals(client) if each["key"].endswith("/fd")]
        assert "not a model card" in junk["reason"]
        assert await names_of(client) == ["good"]
        assert (await client.complete("bare"))[0] == 404
        assert await many(client, "good", 5) == set(fleet.worker_ids)


async def test_a_card_that_lies_about_its_block_size_gets_nothing(backend: Backend) -> None:
    async with (
        registered(backend, 2, model_id="a", engine=TINY) as fleet,
        model_serving(backend) as client,
    ):
        await client.until_shares(a=2)
        cards = Path(backend.environ["DYN_FILE_KV"]) / "v1" / "mdc"
        liar = fleet.worker_ids[0]
        (card,) = cards.glob(f"*{liar:x}")
        said = json.loads(card.read_text())
        said["card_json"]["kv_cache_block_size"] = 32
        card.write_text(json.dumps(said))

        def refused() -> dict[int, str]:
            pools = client.server.models.pools
            return {each: why for pool in pools for each, why in pool.refused.items()}

        def believed() -> list[object]:
            pools = client.server.models.pools
            return [each for each in pools if each.has_worker(liar) and liar not in each.refused]

        await until(lambda: liar in refused() and not believed())
        assert refused()[liar] == "its KV block size is 16, the router's is 32"
        _, body = await client.get("/pools")
        assert str(liar) in json.dumps([pool["refused_workers"] for pool in body["pools"]])
        assert await many(client, "a", 20) == {fleet.worker_ids[1]}


async def test_a_worker_whose_card_changes_leaves_its_pool_at_once(backend: Backend) -> None:
    """Though it answers, and was the only one there: what it serves now is another card's."""
    async with (
        registered(backend, 1, model_id="a", engine=TINY, dialect="dynamo") as fleet,
        model_serving(backend) as client,
    ):
        await client.until_shares(a=1)
        (before,) = client.server.models.pools
        (card,) = (Path(backend.environ["DYN_FILE_KV"]) / "v1" / "mdc").iterdir()
        said = json.loads(card.read_text())
        said["card_json"]["aliases"] = ["new"]
        card.write_text(json.dumps(said))
        await until(lambda: before not in client.server.models.pools)
        await client.until_shares(a=1)
        assert await client.worker_of("new") == fleet.worker_ids[0]


async def test_an_adapter_is_a_model_once_all_workers_have_it(backend: Backend) -> None:
    prompt = "The same long prompt, once with the adapter and once without it, over and over."
    async with (
        registered(backend, 2, model_id="a", engine=TINY) as fleet,
        model_serving(backend) as client,
    ):
        await client.until_shares(a=2)
        cards = Path(backend.environ["DYN_FILE_KV"]) / "v1" / "mdc"
        for number, card in enumerate(sorted(cards.iterdir())):
            assert await names_of(client) == ["a"], number
            said = json.loads(card.read_text())
            said["card_json"]["lora"] = {"name": "fine"}
            (cards / f"{card.name}%2Ffine").write_text(json.dumps({**said, "model_suffix": "fine"}))
        (pool,) = client.server.models.pools
        await until(lambda: pool.found.adapters == {"fine"})
        assert await names_of(client) == ["a", "fine"]
        _, shown = await client.get("/v1/models/fine")
        assert shown["parent"] == "a"
        plain = (await client.complete("a", prompt, seed=1))[1]
        status, tuned = await client.complete("fine", prompt, seed=1)
        assert status == 200 and tuned["model"] == "fine"
        worker = tuned["nvext"]["worker_id"]["decode_worker_id"]
        assert worker in fleet.worker_ids
        # The cache of one is of no use to the other.
        again = (await client.complete("fine", prompt, seed=1))[1]
        assert plain["nvext"]["cached_tokens"] == tuned["nvext"]["cached_tokens"] == 0
        assert again["nvext"]["worker_id"]["decode_worker_id"] == worker
        assert again["nvext"]["cached_tokens"] > 0


async def test_one_page_of_metrics_for_all_pools(backend: Backend) -> None:
    async with (
        registered(backend, 2, model_id="a", engine=TINY),
        registered(backend, 1, model_id="b", engine=TINY),
        model_serving(backend) as client,
    ):
        await client.until_shares(a=2, b=1)
        await many(client, "a", 5)
        await many(client, "b", 3)
        url = f"{client.url}/metrics"
        async with client.session.get(url, headers={"accept-encoding": "gzip"}) as answer:
            assert answer.status == 200
            text = await answer.text()
        families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(families) == len(set(families)), "a family stands on the page twice"
        counted: Counter[str] = Counter()  # of all statuses
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "dynamo_component_router_requests_total":
                    counted[sample.labels["model"]] += int(sample.value)
        assert counted == {"a": 5, "b": 3}


@pytest.mark.parametrize("source", ["engines", "nats"])
async def test_each_pool_knows_what_its_workers_hold(
    backend: Backend, tmp_path: Path, source: str
) -> None:
    """From the engines themselves, or from NATS, where both models speak on one subject."""
    with ExitStack() as stack:
        url = None
        if source == "nats":
            server = stack.enter_context(JetStreamServer(tmp_path / "nats"))
            url = server.url
        more = {"event_sources": "grpc"} if url is None else {"nats": url}
        router = KvRouterConfig(seed=1)
        async with (
            registered(backend, 2, model_id="a", engine=TINY, nats=url),
            registered(backend, 2, model_id="b", engine=TINY, nats=url),
            model_serving(backend, router=router, **more) as client,
        ):
            await client.until_shares(a=2, b=2)
            prompt = list(range(100, 164))
            worker = await client.worker_of("a", prompt=prompt)

            async def overlap(model: str) -> tuple[int, int]:
                status, body = await client.complete(model, prompt)
                assert status == 200
                told = body["nvext"]
                return told["worker_id"]["decode_worker_id"], told["overlap_blocks"]

            async def events_have_come() -> bool:
                return await overlap("a") == (worker, 4)

            await until(events_have_come, 60.0)
            assert (await overlap("b"))[1] == 0


async def test_pools_whose_cards_name_the_same_files_read_them_once(backend: Backend) -> None:
    wider = replace(TINY, block_size=32)
    async with (
        registered(backend, 1, model_id="a", engine=TINY),
        registered(backend, 1, model_id="a", engine=wider),
        registered(backend, 1, model_id="b", engine=TINY),
        model_serving(backend) as client,
    ):
        await client.until_shares(a=2, b=1)
        texts = client.server.models._shared.texts
        assert len({id(pool._text) for pool in client.server.models.pools}) == 1
        assert len(texts) == 1
    gc.collect()
    assert not texts, "a text outlived its pools"
