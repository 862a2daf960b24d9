"""OpenEngine's services: the bytes of a request, and engines that answer over real sockets."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.engines.token_services import (
    CONTEXT,
    VERSION,
    OpenEngineService,
    TokenService,
    open_last,
    open_part,
)
from support.fake_engine import prompt
from support.servers.http_engine import answers_of

from dynamo_router.base.errors import InvalidRequestError, StatusCode, WorkerError
from dynamo_router.workers.dialects import (
    DP_RANK_KEY,
    encode_bias,
    for_decode,
    for_prefill,
    handoff_of,
)
from dynamo_router.workers.failures import EngineCallError
from dynamo_router.workers.handoffs import Half, fit, foreign_host
from dynamo_router.workers.token_services.open_engine import OpenEngineClient
from dynamo_router.workers.token_services.proto import openengine_pb2
from dynamo_router.workers.trtllm_proto import length_delimited, pb

BLOCK = 32


async def says(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
    yield open_part(11)
    yield open_part(12, 13)
    yield open_last(cached=2)


@pytest.fixture
async def engine() -> AsyncIterator[OpenEngineService]:
    async with OpenEngineService(says) as running:
        yield running


@pytest.fixture
async def client(engine: OpenEngineService) -> AsyncIterator[OpenEngineClient]:
    made = OpenEngineClient(engine.address, block_size=BLOCK)
    yield made
    await made.close()


def translated(request: Any) -> bytes:
    client = OpenEngineClient.__new__(OpenEngineClient)
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return client.translate(body, None)[1]


async def generated(client: OpenEngineClient, request: Any, **more: Any) -> Any:
    call = client.generate(request.SerializeToString(), **more)
    return answers_of([message async for message in call])


def test_the_bytes_of_a_request() -> None:
    """As the protocol numbers them, put together by hand."""
    request = prompt("r1", 3)
    request.stop.append("!")
    request.stop_token_ids.append(5)
    request.output_config.logprobs = 2
    request.cache_salt_id = 7
    request.guided_decoding.guide_type = pb.GuidedDecodingParams.GUIDE_TYPE_REGEX
    request.guided_decoding.guide = "a+"
    off = length_delimited(1, b"detokenize") + length_delimited(2, b"\x20\x00")
    expected = (
        length_delimited(1, b"r1")
        + length_delimited(6, b"\x08\x04\x1a\x03\x0a\x01!\x1a\x02\x10\x05")
        + length_delimited(7, b"\x18\x01\x22\x02\x08\x02")
        + length_delimited(8, length_delimited(3, b"7"))
        + length_delimited(9, length_delimited(2, b"a+"))
        + length_delimited(12, length_delimited(1, off))
        + length_delimited(4, length_delimited(1, b"\x01\x02\x03"))
    )
    assert translated(request) == expected


def test_ids_may_come_in_any_encoding() -> None:
    """Packed or not, in one part or several."""
    request = prompt("r1", 0)
    loose = b"\x10\x07\x10\x80\x01"
    body = request.SerializeToString() + length_delimited(2, loose)
    body += length_delimited(2, length_delimited(2, b"\x09"))
    found = openengine_pb2.GenerateRequest.FromString(translated(body))
    assert list(found.token_ids.ids) == [7, 128, 9]


def test_sampling() -> None:
    request = prompt("r1", 3)
    request.sampling_config.temperature, request.sampling_config.top_k = 0.5, 7
    request.sampling_config.seed, request.sampling_config.min_tokens = 2**40, 2
    request.ignore_eos = request.include_stop_token_in_output = True
    request.output_config.prompt_logprobs = 1
    found = openengine_pb2.GenerateRequest.FromString(translated(request))
    assert (found.sampling.temperature, found.sampling.top_k) == (0.5, 7)
    assert (found.sampling.seed, found.stopping.min_tokens) == (2**40, 2)
    assert found.stopping.ignore_eos and found.stopping.include_stop_in_output
    assert found.response.return_prompt_logprobs and found.response.prompt_candidates.top_n == 1


def test_what_it_has_no_word_for() -> None:
    body = prompt("r1", 3).SerializeToString()
    with pytest.raises(InvalidRequestError, match="an embedding bias"):
        translated(body + encode_bias({5: 1.0}, 100))


def test_legs_say_which_one_they_are() -> None:
    """A session goes to the decode engine as it came, fields that are not known here included."""
    body = prompt("r1", 3).SerializeToString()
    first = openengine_pb2.GenerateRequest.FromString(translated(for_prefill(body)))
    assert (first.extra["request_type"], first.stopping.max_tokens) == ("context_only", 1)
    assert not first.HasField("kv")
    session = openengine_pb2.KvSession(session_id="77").SerializeToString() + b"\x12\x04nixl"
    parcel = json.dumps({"kv_session": b64encode(session).decode(), "host": []}).encode()
    then = openengine_pb2.GenerateRequest.FromString(translated(for_decode(body, parcel)))
    assert then.extra["request_type"] == "generation_only"
    assert then.kv.session.SerializeToString() == session


@pytest.mark.parametrize(
    "parcel", [b"{", b"[]", b'{"kv_session": 3}', b'{"kv_session": "?"}', b'{"host": []}',
               b'{"kv_session": "/w==", "host": []}', b'{"other": 1}']
)  # fmt: skip
def test_what_is_no_session(parcel: bytes) -> None:
    body = for_decode(prompt("r1", 3).SerializeToString(), parcel)
    with pytest.raises(InvalidRequestError, match="handoff is none of OpenEngine"):
        translated(body)


async def test_a_session_names_whom_a_decode_engine_connects_to(
    client: OpenEngineClient, engine: OpenEngineService
) -> None:
    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        found = openengine_pb2.GenerateResponse()
        session = found.prefill_ready.kv_session
        session.session_id = "77"
        session.endpoints.add(host="127.0.0.1")
        session.attributes_struct.update({"ctx_info_endpoint": ["tcp://10.0.0.9:1"]})
        yield found
        yield open_last(1, 16)

    engine.script = script
    call = client.generate(for_prefill(prompt("r1", 32).SerializeToString()), timeout=5)
    (message,) = [each async for each in call]
    assert pb.GenerateResponse.FromString(message).complete.finish_reason == "length"
    parcel = handoff_of(message)
    assert parcel is not None and foreign_host(parcel, engine.address) == "10.0.0.9"


async def test_tokens_in_and_out(client: OpenEngineClient, engine: OpenEngineService) -> None:
    await client.describe(timeout=5)
    tokens, last = await generated(client, prompt("r1", 8), metadata=((DP_RANK_KEY, "3"),))
    assert tokens == list(last.output_token_ids) == [11, 12, 13]
    assert (last.finish_reason, last.cached_tokens, last.prompt_tokens) == ("length", 2, 8)
    assert engine.metadata[0]["openengine-target-dp-rank"] == "3"
    (asked,) = engine.requests
    assert (asked.model, list(asked.token_ids.ids)) == ("tiny", [*range(1, 9)])
    whole = prompt("r2", 8)
    whole.streaming = False
    chunks, last = await generated(client, whole)
    assert chunks == [] and list(last.output_token_ids) == [11, 12, 13]


async def test_logprobs_and_what_matched(
    client: OpenEngineClient, engine: OpenEngineService
) -> None:
    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        before = openengine_pb2.GenerateResponse()
        before.prompt.tokens.add(token_id=1, logprob=-1.0)
        yield before
        part = open_part(11)
        part.token.tokens[0].logprob = -0.5
        part.token.tokens[0].candidates.add(token_id=9, logprob=-2.0)
        part.token.tokens[0].candidates.add(token_id=11, logprob=-0.5)
        yield part
        last = open_last(1)
        last.finished.stop_match.eos_token_id = 11
        yield last

    engine.script = script
    asked = prompt("r1", 1)
    asked.output_config.logprobs = asked.output_config.prompt_logprobs = 2
    _, last = await generated(client, asked)
    assert (last.finish_reason, last.matched_token_id) == ("stop", 11)
    assert [each.token_id for each in last.logprobs[0].top_logprobs] == [11, 9]
    assert [each.token_id for each in last.prompt_logprobs] == [1]


CODES = {
    1: StatusCode.INVALID_ARGUMENT,
    2: StatusCode.INVALID_ARGUMENT,
    4: StatusCode.NOT_FOUND,
    5: StatusCode.RESOURCE_EXHAUSTED,
    11: StatusCode.UNAVAILABLE,
    12: StatusCode.INTERNAL,
    99: StatusCode.INTERNAL,
}


@pytest.mark.parametrize("code", CODES)
async def test_an_event_may_be_a_failure(
    client: OpenEngineClient, engine: OpenEngineService, code: int
) -> None:
    async def script(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        found = openengine_pb2.GenerateResponse()
        found.error.message = "no"
        found.MergeFromString(length_delimited(6, bytes((8, code))))
        yield found

    engine.script = script
    with pytest.raises(EngineCallError, match="no") as error:
        await generated(client, prompt("r1", 8))
    assert error.value.code() is CODES[code]


async def test_what_an_engine_says_of_itself(
    client: OpenEngineClient, engine: OpenEngineService
) -> None:
    identity, facts = await client.describe(timeout=5)
    assert identity.dp_size == 1
    assert (facts.model_id, facts.max_seq_len, facts.version) == ("tiny", CONTEXT, VERSION)
    assert facts.settings == {"total_kv_blocks": 200, "max_num_seqs": 8}
    await client.check_health(timeout=5)
    engine.healthy = False
    with pytest.raises(WorkerError, match="NOT_READY scheduler: out of memory"):
        await client.check_health(timeout=5)
    half = Half("p", client.dialect, facts)
    found = fit([half], [half._replace(name="d")])
    assert found is not None and found.connector is not None
    assert found.connector.must_read and not found.connector.abort_safe
    engine.info.engine_role = 3
    _, facts = await client.describe(timeout=5)
    assert facts.transfer.role == "decode" and not facts.transfer.runs_whole
    for asked in (client.embed(b""), client.clear_kv_blocks(timeout=1)):
        with pytest.raises(EngineCallError) as error:
            await asked
        assert error.value.code() is StatusCode.UNIMPLEMENTED
    with pytest.raises(EngineCallError, match="KV events"):
        client.subscribe_kv_events(0)


@pytest.mark.parametrize(
    ("said", "expected"),
    [([11], [11]), ([11, 12], []), ([], []), ("11", []), ([1.5], []), ([-1], []), ([2**31], [])],
)
async def test_the_token_that_a_session_hands_on_is_that_of_the_prefill(
    engine: OpenEngineService, client: OpenEngineClient, said: Any, expected: list[int]
) -> None:
    """What is none is left out: the prompt is handed over all the same."""

    async def hands_over(engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        found = openengine_pb2.GenerateResponse()
        session = found.prefill_ready.kv_session
        session.session_id = "7"
        session.attributes_struct.update({"first_gen_tokens": said})
        yield found

    engine.script = hands_over
    request = for_prefill(prompt("r1", 48).SerializeToString())
    messages = [each async for each in client.generate(request)]
    last = pb.GenerateResponse.FromString(messages[-1]).complete
    assert list(last.output_token_ids) == expected and handoff_of(messages[-1])
