"""The clients of engines with gRPC services of their own, over real sockets."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2
from support.engines.token_services import (
    CONTEXT,
    VERSION,
    VOCABULARY,
    SglangService,
    TokenService,
    VllmService,
    sglang_last,
    sglang_part,
    vllm_last,
    vllm_part,
)
from support.fake_engine import prompt
from support.polling import until
from support.servers.http_engine import answers_of

from dynamo_router.base.errors import StatusCode, WorkerError
from dynamo_router.workers.dialects import DP_RANK_KEY, handoff_of
from dynamo_router.workers.failures import EngineCallError, Origin
from dynamo_router.workers.registry import MAX_RANKS
from dynamo_router.workers.token_services import TokenServiceClient
from dynamo_router.workers.token_services import client as token_client
from dynamo_router.workers.token_services.answers import AnswerReader
from dynamo_router.workers.token_services.sglang import SglangClient
from dynamo_router.workers.token_services.vllm import VllmClient
from dynamo_router.workers.transfer_facts import BOOTSTRAP, NONE, TransferFacts
from dynamo_router.workers.trtllm_proto import common_pb, pb

BLOCK = 32


async def says(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
    """11, then 12 and 13; whole, where it is not streamed."""
    vllm = isinstance(engine, VllmService)
    if request.stream:
        yield vllm_part([11], 2) if vllm else sglang_part([11], 1, 2)
        yield vllm_part([12, 13], 2) if vllm else sglang_part([12, 13], 3, 2)
        yield vllm_last([12, 13], "length", 2) if vllm else sglang_last([12, 13], 3, "length", 2)
    else:
        tokens = [11, 12, 13]
        yield vllm_last(tokens, "length", 2) if vllm else sglang_last(tokens, 3, "length", 2)


@pytest.fixture(params=[VllmService, SglangService])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[TokenService]:
    async with request.param(says) as running:
        yield running


@pytest.fixture
async def client(engine: TokenService) -> AsyncIterator[TokenServiceClient]:
    kind = VllmClient if isinstance(engine, VllmService) else SglangClient
    made = kind(engine.address, block_size=BLOCK)
    yield made
    assert not made._running
    await made.close()


async def generated(
    client: TokenServiceClient, request: Any = None, **more: Any
) -> tuple[list[int], Any]:
    call = client.generate((request or prompt("r1", 8)).SerializeToString(), **more)
    return answers_of([message async for message in call])


async def failure(client: TokenServiceClient, request: Any = None) -> EngineCallError:
    with pytest.raises(EngineCallError) as error:
        await generated(client, request)
    return error.value


async def test_tokens_in_and_out(client: TokenServiceClient, engine: TokenService) -> None:
    tokens, last = await generated(client)
    assert tokens == list(last.output_token_ids) == [11, 12, 13]
    assert (last.prompt_tokens, last.completion_tokens, last.cached_tokens) == (8, 3, 2)
    assert last.finish_reason == "length"
    asked = prompt("r2", 8)
    asked.streaming = False
    chunks, last = await generated(client, asked)
    assert chunks == [] and list(last.output_token_ids) == [11, 12, 13]
    assert [list(each.tokenized.input_ids) for each in engine.requests] == [[*range(1, 9)]] * 2


async def test_a_rank_is_a_field_and_the_rest_goes_along(
    client: TokenServiceClient, engine: TokenService
) -> None:
    await generated(client, metadata=((DP_RANK_KEY, "1"), ("traceparent", "00-ab")))
    assert engine.requests[0].data_parallel_rank == 1
    assert engine.metadata[0]["traceparent"] == "00-ab" and DP_RANK_KEY not in engine.metadata[0]


async def test_logprobs(client: TokenServiceClient, engine: TokenService) -> None:
    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        vllm = isinstance(engine, VllmService)
        for place in range(2):
            part = vllm_part([11 + place]) if vllm else sglang_part([11 + place], place + 1)
            of = part.chunk.output_logprobs
            of.token_ids.append(11 + place)
            of.token_logprobs.append(-0.5)
            of.top_logprobs.add(token_ids=[11 + place, 9], values=[-0.5, -1.5])
            if vllm and not place:
                about = part.chunk.input_logprobs
                about.token_ids.extend([1, 2])
                about.token_logprobs.add()
                about.token_logprobs.add(value=-2.0)
                about.top_logprobs.add()
                about.top_logprobs.add(token_ids=[8, 2], values=[-3.0, -2.0])
            yield part
        last = vllm_last([12], "stop") if vllm else sglang_last([12], 2, "stop")
        last.complete.matched_token_id = 12
        yield last

    engine.script = script
    asked = prompt("r1", 2)
    asked.output_config.logprobs = 2
    vllm = isinstance(engine, VllmService)
    if vllm:
        asked.output_config.prompt_logprobs = 2
    tokens, last = await generated(client, asked)
    assert tokens == [11, 12] and (last.finish_reason, last.matched_token_id) == ("stop", 12)
    found = [(each.token_id, each.logprob) for each in last.logprobs]
    assert found == [(11, -0.5), (12, -0.5)]
    assert [t.token_id for t in last.logprobs[1].top_logprobs] == [12, 9]
    if vllm:
        assert [each.token_id for each in last.prompt_logprobs] == [1, 2]
        assert [t.token_id for t in last.prompt_logprobs[1].top_logprobs] == [2, 8]


WRONG = {
    "no reason": ([vllm_part([11])], [sglang_part([11], 1)], "ended without a reason"),
    "too many": ([vllm_part([1] * 9)], [sglang_part([1] * 9, 9)], "more than the 4 tokens"),
    "fewer ids": (None, [sglang_part([1], 3)], "fewer token ids than tokens"),
    "an error": ([vllm_last([], "error")], [sglang_last([], 0, "error")], "with an error"),
    "a parcel": ([vllm_last([1], "length", 0, "[")], None, "hands over cannot be read"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_answers_that_are_wrong(
    client: TokenServiceClient, engine: TokenService, what: str
) -> None:
    of_vllm, of_sglang, reason = WRONG[what]
    messages = of_vllm if isinstance(engine, VllmService) else of_sglang
    if messages is None:
        return

    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        for message in messages:
            yield message
        if what in ("too many", "fewer ids"):
            await asyncio.Event().wait()

    engine.script = script
    error = await failure(client)
    assert (error.code(), error.origin) == (StatusCode.INTERNAL, Origin.ENGINE)
    assert reason in error.details()
    if what in ("too many", "fewer ids"):  # it is not left to go on
        await until(lambda: engine.cancelled == ["r1"])


async def test_an_engines_own_words_for_a_failure(
    client: TokenServiceClient, engine: TokenService
) -> None:
    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        yield

    engine.script = script
    error = await failure(client)
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED and "queue is full" in error.details()
    refused = prompt("r2", 8)
    refused.cache_salt_id = 1
    error = await failure(client, refused)
    assert error.code() is StatusCode.INVALID_ARGUMENT and "a cache salt" in error.details()


@pytest.mark.parametrize("status", [None, grpc.StatusCode.ABORTED])
async def test_an_abort_ends_an_answer_well(
    client: TokenServiceClient, engine: TokenService, status: grpc.StatusCode | None
) -> None:
    """Whether the engine then fails the call, or only ends it."""

    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        yield vllm_part([11]) if isinstance(engine, VllmService) else sglang_part([11], 1)
        await engine.go.wait()
        if status is not None:
            await context.abort(status, "aborted")

    engine.script = script
    call = client.generate(prompt("r1", 8).SerializeToString())
    messages = aiter(call)
    first = pb.GenerateResponse.FromString(await anext(messages))
    assert list(first.chunk.token_ids) == [11]
    assert (await client.abort("other", timeout=1))[0] is False
    assert (await client.abort("r1", timeout=1))[0] is True
    assert engine.aborted == ["r1"]
    (last,) = [pb.GenerateResponse.FromString(message) async for message in messages]
    assert (last.complete.finish_reason, list(last.complete.output_token_ids)) == (
        "cancelled",
        [11],
    )


async def test_a_call_that_is_cancelled_ends_at_its_engine(
    client: TokenServiceClient, engine: TokenService
) -> None:
    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    engine.script = script
    call = client.generate(prompt("r1", 8).SerializeToString())
    await until(lambda: len(engine.requests) == 1)
    assert call.cancel() is True
    with pytest.raises(asyncio.CancelledError):
        await anext(aiter(call))
    await until(lambda: engine.cancelled == ["r1"])
    late = client.generate(prompt("r2", 8).SerializeToString(), timeout=0.05)
    with pytest.raises(EngineCallError) as error:
        await anext(aiter(late))
    assert error.value.code() is StatusCode.DEADLINE_EXCEEDED


async def test_what_an_engine_says_of_itself(
    client: TokenServiceClient, engine: TokenService
) -> None:
    identity, facts = await client.describe(timeout=5)
    assert identity.dp_size == 1
    assert (facts.model_id, facts.max_seq_len, facts.vocab_size) == ("tiny", CONTEXT, VOCABULARY)
    assert (facts.longest_prompt, facts.version) == (CONTEXT - 1, VERSION)
    assert facts.settings == {"total_kv_blocks": 200, "max_num_seqs": 8}
    assert facts.transfer.connector == NONE
    await client.check_health(timeout=5)
    engine.healthy = False
    with pytest.raises(WorkerError, match="out of memory"):
        await client.check_health(timeout=5)


async def test_the_other_calls(client: TokenServiceClient, engine: TokenService) -> None:
    asked = pb.EmbedRequest(request_id="e1")
    asked.tokenized.input_token_ids.extend([1, 2])
    found = pb.EmbedResponse.FromString(await client.embed(asked.SerializeToString()))
    assert (found.request_id, list(found.embedding), found.prompt_tokens) == ("e1", [0.5, 2.0], 2)
    chunks = [each async for each in client.get_tokenizer(b"")]
    assert [common_pb.GetTokenizerChunk.FromString(each).data for each in chunks] == [b"zip"]
    await client.clear_kv_blocks(timeout=5)
    engine.flushed = False
    with pytest.raises(EngineCallError, match="requests are running"):
        await client.clear_kv_blocks(timeout=5)
    assert await client.prefetch(b"", timeout=1) is None
    engine.events = [common_pb.KvEventBatch(sequence_number=3)]
    events = client.subscribe_kv_events(3)
    batch = common_pb.KvEventBatch.FromString(await events.read())
    assert batch.sequence_number == engine.subscribed[0].start_sequence_number == 3
    events.cancel()


async def test_how_vllm_hands_over() -> None:
    """Each rank has an id of its own where there are several; the URL's words go before."""
    async with VllmService(says) as engine:
        info: Any = vllm_engine_pb2.GetServerInfoResponse(
            kv_connector="NixlPushConnector", kv_role="kv_producer", kv_engine_id="e",
            data_parallel_size=2, block_size=16, kv_cache_dtype="auto",
            model_dtype="torch.bfloat16", pairing_protocol="p1",
        )  # fmt: skip
        engine.info = info
        client = VllmClient(engine.address, block_size=BLOCK, parallel=(4, 1))
        identity, facts = await client.describe(timeout=5)
        assert identity.dp_size == 2 and facts.tensor_parallel_size == 4
        expected = TransferFacts(
            connector="nixl_push", role="prefill", host="127.0.0.1", port=5600,
            engine_ids=("e_dp0", "e_dp1"), block_size=16, cache_type="auto of torch.bfloat16",
            pairing="p1",
        )  # fmt: skip
        assert facts.transfer == expected
        await client.close()
        stated = TransferFacts(connector="nixl_push", host="h", port=7000)
        client = VllmClient(engine.address, transfer=stated)
        found = (await client.describe(timeout=5))[1].transfer
        assert (found.host, found.port, found.engine_ids) == ("h", 7000, ("e_dp0", "e_dp1"))
        await client.close()
        info.kv_connector, info.data_parallel_size = "LMCacheConnectorV1", 1
        client = VllmClient(engine.address)
        found = (await client.describe(timeout=5))[1].transfer
        assert (found.connector, found.engine_ids) == ("LMCacheConnectorV1", ("e",))
        await client.close()


@pytest.mark.parametrize("ranks", [-1, MAX_RANKS + 1, 2**31 - 1])
async def test_ranks_that_no_vllm_has_are_none(ranks: int) -> None:
    """An id for each of them would take all memory that there is."""
    async with VllmService(says) as engine:
        info: Any = vllm_engine_pb2.GetServerInfoResponse(
            kv_connector="NixlConnector", kv_engine_id="e", data_parallel_size=ranks
        )
        engine.info = info
        client = VllmClient(engine.address)
        identity, facts = await client.describe(timeout=5)
        assert identity.dp_size is None and facts.transfer.engine_ids == ("e",)
        await client.close()


async def test_how_sglang_hands_over() -> None:
    async with SglangService(says) as engine:
        engine.info.server_args.update(
            {"disaggregation_mode": "decode", "disaggregation_bootstrap_port": 9000, "dp_size": 4}
        )
        client = SglangClient(engine.address, block_size=BLOCK)
        identity, facts = await client.describe(timeout=5)
        assert identity.dp_size == 4
        assert facts.transfer == TransferFacts(
            connector=BOOTSTRAP, role="decode", host="127.0.0.1", port=9000, block_size=16
        )
        await client.close()


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
async def test_arguments_of_sglang_that_are_no_numbers_say_nothing(number: float) -> None:
    async with SglangService(says) as engine:
        engine.info.server_args.update({"watchdog_timeout": number, "page_size": number})
        client = SglangClient(engine.address, block_size=BLOCK)
        facts = (await client.describe(timeout=5))[1]
        assert facts.settings == {"total_kv_blocks": 200, "max_num_seqs": 8}
        await client.close()


@pytest.mark.parametrize(("tokens", "beside"), [(2, False), (2000, True)])
async def test_a_list_for_each_token_of_a_prompt_is_read_beside_the_event_loop(
    tokens: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        last = vllm_last([7], "length")
        about = last.complete.input_logprobs
        about.token_ids.extend(range(tokens))
        for _ in range(tokens):
            about.token_logprobs.add(value=-1.0)
        yield last

    threads: list[bool] = []

    class Reader(AnswerReader):
        def read(self, data: bytes) -> list[bytes]:
            threads.append(threading.current_thread() is not threading.main_thread())
            return super().read(data)

    monkeypatch.setattr(token_client, "AnswerReader", Reader)
    asked = prompt("r1", tokens)
    asked.streaming, asked.output_config.prompt_logprobs = False, 1
    async with VllmService(script) as engine:
        client = VllmClient(engine.address)
        _, last = await generated(client, asked)
        assert len(last.prompt_logprobs) == tokens and threads == [beside]
        await client.close()


async def test_a_parcel_goes_with_the_last_message() -> None:
    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        yield vllm_part([11])
        yield vllm_last([11], "length", 0, '{"remote_host": "127.0.0.1"}')

    async with VllmService(script) as engine:
        client = VllmClient(engine.address)
        call = client.generate(prompt("r1", 8).SerializeToString())
        messages = [message async for message in call]
        assert handoff_of(messages[-1]) == b'{"kv_transfer_params":{"remote_host":"127.0.0.1"}}'
        await client.close()
