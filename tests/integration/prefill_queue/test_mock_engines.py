"""Mock engines that share prompts through the prefill queue, behind a frontend."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.polling import closed_after, until
from support.servers.discovered_fleet import Backend, registered
from support.servers.jetstream import JetStreamServer
from support.servers.model_serving import TINY, ModelClient, model_serving

from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.engines.prefill_queue import PrefillQueueConfig
from dynamo_router.engines.transfer import TransferConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.runtime.kv_stores import open_store
from dynamo_router.server.request_limits import HandoffLimits

PROMPT = list(range(100, 185))
ROUTED = ("requests", "tokens", "oldest_seconds")
ASKED: dict[str, Any] = {"seed": 3, "max_tokens": 9}


class Serving:
    """A frontend that uses the queue, engines of each role, and one that does both as `both`."""

    def __init__(
        self, client: ModelClient, model: str, prefill: MockFleet, decode: MockFleet
    ) -> None:
        self.model = model
        self.client, self.prefill, self.decode = client, prefill, decode

    async def ready(self) -> None:
        def there() -> bool:
            pools = [pool for pool in self.client.server.models.pools if pool.answers]
            return all(
                any(p.name.model == m and p.share for p in pools) for m in (self.model, "both")
            )

        await until(there)
        engines = (*self.prefill.engines, *self.decode.engines)
        await until(lambda: all(each.queue is not None and each.queue.is_ready for each in engines))

    async def ask(self, model: str = "", prompt: Any = PROMPT) -> Any:
        status, answer = await self.client.complete(model or self.model, prompt, **ASKED)
        assert status == 200, answer
        return answer

    def count(self, name: str, fleet: MockFleet | None = None) -> float:
        found = (fleet or self.decode).metrics.registry.get_sample_value
        return found(f"dynamo_router_prefill_queue_{name}") or 0.0

    async def routed(self) -> list[float]:
        """What the router's page says of queued prompts: how many, of how many tokens, how old."""
        async with self.client.session.get(f"{self.client.url}/metrics") as answer:
            page = await answer.text()
        names = [f"dynamo_router_disagg_queued_{each}" for each in ROUTED]
        assert "dynamo_router_prefill_queue_" not in page, "of engines: a sum would have them twice"
        samples = [each.split(" ") for each in page.splitlines() if each.startswith(tuple(names))]
        found = [sum(float(value) for name, value in samples if name.startswith(each + "{"))
                 for each in names]  # fmt: skip
        assert len(samples) >= len(names)
        return found

    def outcome(self, word: str) -> float:
        name = "dynamo_router_prefill_queue_prefills_total"
        return self.decode.metrics.registry.get_sample_value(name, {"outcome": word}) or 0.0


@pytest.fixture
async def serving(
    backend: Backend, nats: JetStreamServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Any]:
    folder = tmp_path / "blocks"
    folder.mkdir()
    model = request.node.name.translate({ord(each): "_" for each in "[]-"})[:60]

    async with AsyncExitStack() as stack:

        async def start(kind: str = "shm", *, limits: Any = None, **more: Any) -> Serving:
            moves = TransferConfig(transfer=kind, transfer_folder=str(folder))
            settings = {"prefill_queue": True, "prefill_queue_ack_wait_s": 0.6} | more
            queue = PrefillQueueConfig(**settings)
            shared: dict[str, Any] = {"model_id": model, "engine": TINY, "moves": moves}
            shared |= {"queue": queue, "nats": nats.url}

            async def fleet(role: str, count: int) -> MockFleet:
                found: MockFleet = await stack.enter_async_context(
                    registered(backend, count, disaggregation_mode=role, **shared)
                )
                return found

            await stack.enter_async_context(registered(backend, 1, model_id="both", engine=TINY))
            prefill, decode = await fleet("prefill", 2), await fleet("decode", 1)
            given = {"disagg_handoff": "queue"} | (limits or {})
            client = await stack.enter_async_context(
                model_serving(
                    backend, disagg=DisaggConfig(disagg="always"), handoff=HandoffLimits(**given)
                )
            )
            found = Serving(client, model, prefill, decode)
            await found.ready()
            return found

        yield start
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["shm", "nixl", "none"])
async def test_an_answer_is_that_of_a_worker_that_does_both(serving: Any, kind: str) -> None:
    if kind == "nixl":
        pytest.importorskip("nixl")
    found = await serving(kind)
    plain = await found.ask("both")
    answer = await found.ask()
    assert answer["choices"] == plain["choices"]
    assert found.outcome("landed") == 1
    page = found.prefill.metrics.text().decode()
    assert f'transfer_bytes_total{{direction="write",transfer="{kind}"}}' in page
    (ours,) = found.decode.engines[0].moves.ranks
    assert (ours.contents.corrupt, bool(ours.contents.checked)) == (0, kind != "none")
    assert (await found.ask())["usage"]["prompt_tokens_details"]["cached_tokens"] >= 80
    await until(lambda: not any(each.engine.kept for each in found.prefill.engines))


async def test_a_dead_prefill_engines_prompt_goes_to_another(serving: Any) -> None:
    found = await serving()
    plain = await found.ask("both")
    for each in found.prefill.engines:
        each.ranks.hang(True)
    asked = asyncio.create_task(found.ask())
    engines = found.prefill.engines
    await until(lambda: any(each.queue.consumer.active for each in engines))
    await next(each for each in engines if each.queue.consumer.active).kill()
    for each in engines:
        each.ranks.hang(False)
    assert (await asked)["choices"] == plain["choices"]
    assert found.outcome("landed") == 1
    assert found.count("redelivered_total", found.prefill) >= 1


async def test_without_prefill_engines_the_decode_engine_computes(serving: Any) -> None:
    found = await serving(prefill_queue_timeout_s=0.5)
    plain = await found.ask("both")
    for each in found.prefill.engines:
        each.ranks.hang(True)
    assert (await found.ask())["choices"] == plain["choices"]
    assert found.outcome("deadline") == 1
    for each in found.prefill.engines:
        each.ranks.hang(False)
    grants = found.decode.engines[0].moves.ranks[0].transfer.grants
    await until(lambda: not grants.open_attempts)
    await until(lambda: not any(each.queue.consumer.active for each in found.prefill.engines))


async def test_thresholds_of_the_router_and_of_the_store(serving: Any, backend: Backend) -> None:
    found = await serving(limits={"max_local_prefill_length": 100})
    await found.ask()  # 85 tokens
    assert found.outcome("landed") == 0
    await found.ask(prompt=list(range(300, 420)))
    assert found.outcome("landed") == 1
    async with closed_after(open_store(backend.kind)) as store:
        bucket = store.bucket("public/components/disagg_router/models/chat")
        await bucket.put(found.model, b'{"max_local_prefill_length": 200}')
        thresholds = found.decode.engines[0].queue._thresholds
        await until(lambda: thresholds.stored.max_local_prefill_length == 200)
        await found.ask(prompt=list(range(500, 620)))
        assert found.outcome("landed") == 1
        await bucket.put(found.model, b"many")  # none such counts
        await until(lambda: thresholds.stored.max_local_prefill_length is None)
        await found.ask(prompt=list(range(700, 820)))
        assert found.outcome("landed") == 2


async def test_a_client_that_goes_away_takes_its_prompt_out_of_the_queue(serving: Any) -> None:
    found = await serving()
    for each in found.prefill.engines:
        each.ranks.hang(True)
    asked = asyncio.create_task(found.ask())
    await until(lambda: found.count("requests") == 1)
    assert found.count("tokens") == len(PROMPT)
    requests, tokens, oldest_s = await found.routed()
    assert requests == 1 and len(PROMPT) <= tokens < len(PROMPT) + TINY.block_size
    assert 0 < oldest_s < 600
    asked.cancel()
    await asyncio.wait([asked])
    await until(lambda: found.count("requests") == 0)
    assert found.outcome("aborted") == 1
    for each in found.prefill.engines:
        each.ranks.hang(False)
    await until(lambda: not any(each.queue.consumer.active for each in found.prefill.engines))
    assert await found.routed() == [0, 0, 0]
    await found.ask()
    assert found.outcome("landed") == 1
    assert await found.routed() == [0, 0, 0]
