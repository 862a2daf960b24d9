"""An engine's messages as text: stop strings, counts, finish reasons, requests of engines."""

import json
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.engine_requests import (
    MOST_KEPT,
    PASSED_ON,
    Choice,
    HashedPrompt,
    PromptReader,
    engine_request,
    kept_settings,
)
from dynamo_router.frontend.generation import AnswerReader
from dynamo_router.frontend.openai import CompletionRequest, Delta, read_request
from dynamo_router.frontend.processor import ModelText
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.dispatch import RequestReader
from dynamo_router.server.dispatch.generate_request import read_generate
from dynamo_router.workers.trtllm_proto import pb


@pytest.fixture(scope="module")
def text() -> Iterator[ModelText]:
    off_loop = OffLoop()
    yield ModelText(OWN_MODEL, off_loop)
    off_loop.close()


def request(**fields: Any) -> CompletionRequest:
    body = {"model": "m", "prompt": "p", "stream": True, **fields}
    found: CompletionRequest = read_request(json.dumps(body).encode(), CompletionRequest)
    return found


def chunk(*ids: int, prompt: int = 5, cached: int = 0) -> bytes:
    response = pb.GenerateResponse()
    response.chunk.token_ids.extend(ids)
    response.chunk.prompt_tokens, response.chunk.cached_tokens = prompt, cached
    data: bytes = response.SerializeToString()
    return data


def complete(*ids: int, reason: str = "length", **more: Any) -> bytes:
    response = pb.GenerateResponse()
    response.complete.output_token_ids.extend(ids)
    response.complete.finish_reason = reason
    response.complete.prompt_tokens = 5
    for name, value in more.items():
        setattr(response.complete, name, value)
    data: bytes = response.SerializeToString()
    return data


def choice(tokens: Any, max_tokens: int, **more: Any) -> Choice:
    made = array("I", tokens) if isinstance(tokens, list) else tokens
    return Choice(0, HashedPrompt(made, Prompt(made, 16)), max_tokens, **more)


def asked_of(*given: Any) -> Any:
    """The message that an engine is asked by."""
    return pb.GenerateRequest.FromString(engine_request(*given).body)


def ids_of(text: ModelText, said: str) -> list[int]:
    ids: list[int] = text._tokenizer.encode(said, add_special_tokens=False).ids
    return ids


def read(text: ModelText, messages: list[bytes], prefix: str = "", **fields: Any) -> list[Delta]:
    reader = AnswerReader(text, request(**fields), prefix)
    return [delta for delta in map(reader.read, messages) if delta is not None]


def test_a_stream_token_by_token(text: ModelText) -> None:
    ids = ids_of(text, "the cache of a worker")
    reader = AnswerReader(text, request())
    deltas = [reader.read(chunk(each, cached=3 * (at == 0))) for at, each in enumerate(ids)]
    deltas.append(reader.read(complete(*ids)))
    found = [delta for delta in deltas if delta is not None]
    assert "".join(delta.text for delta in found) == "the cache of a worker"
    assert [delta.finish_reason for delta in found if delta.finish_reason] == ["length"]
    assert reader.usage.completion_tokens == len(ids)
    assert reader.usage.prompt_tokens == 5 and reader.usage.cached_tokens == 3


def test_an_answer_in_one_message(text: ModelText) -> None:
    (delta,) = read(text, [complete(*ids_of(text, "all of it"), reason="stop")])
    assert delta == Delta("all of it", "stop")


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_a_stop_string_ends_it(text: ModelText, streamed: bool, include: bool) -> None:
    ids = ids_of(text, "one two three")
    messages = [*map(chunk, ids), complete(*ids)] if streamed else [complete(*ids)]
    deltas = read(text, messages, stop=["two"], include_stop_str_in_output=include)
    assert "".join(delta.text for delta in deltas) == ("one two" if include else "one ")
    assert deltas[-1].finish_reason == "stop" and deltas[-1].stop_reason == "two"
    assert all(delta.finish_reason is None for delta in deltas[:-1])


def test_before_min_tokens_nothing_stops(text: ModelText) -> None:
    ids = ids_of(text, "stop stop")
    deltas = read(text, [*map(chunk, ids), complete()], stop="stop", min_tokens=len(ids) - 1)
    assert "".join(delta.text for delta in deltas).startswith("stop")
    assert deltas[-1].stop_reason in ("stop", None)
    (delta,) = read(text, [complete(*ids)], stop="stop", min_tokens=len(ids))
    assert delta.text == "stop stop" and delta.finish_reason == "length"


@pytest.mark.parametrize(
    "reason, stop_ids, matched, finish, stop_reason",
    [
        ("stop", [7], 7, "stop", 7),
        ("stop", [], 2, "stop", None),  # the end of sequence has no reason of its own
        ("length", [], None, "length", None),
        ("cancelled", [], None, "abort", None),
    ],
)
def test_finish_reasons(
    text: ModelText,
    reason: str,
    stop_ids: list[int],
    matched: int | None,
    finish: str,
    stop_reason: int | None,
) -> None:
    more = {} if matched is None else {"matched_token_id": matched}
    (delta,) = read(text, [complete(300, reason=reason, **more)], stop_token_ids=stop_ids)
    assert (delta.finish_reason, delta.stop_reason) == (finish, stop_reason)


def test_a_prompt_that_is_echoed_comes_first_and_once(text: ModelText) -> None:
    ids = ids_of(text, " b")
    deltas = read(text, [*map(chunk, ids), complete(*ids)], prefix="a")
    assert "".join(delta.text for delta in deltas) == "a b"
    assert [delta.text for delta in read(text, [complete()], prefix="a")] == ["a"]


def test_logprobs_name_tokens(text: ModelText) -> None:
    (token,) = ids_of(text, "a")
    response = pb.GenerateResponse()
    response.chunk.token_ids.append(token)
    told = response.chunk.logprobs.add(token_id=token, logprob=-0.5)
    for other in (token, 2, 300):
        told.top_logprobs.add(token_id=other, logprob=-1.0)
    (delta,) = read(text, [response.SerializeToString()], logprobs=2)
    (logprob,) = delta.logprobs
    assert logprob.token == "a" and logprob.logprob == -0.5
    assert [name for name, _ in logprob.top] == ["a", "<|end|>"]
    (without,) = read(text, [response.SerializeToString()])
    assert without.logprobs == ()


def test_what_an_engine_is_asked() -> None:
    asked = request(
        temperature=0.5,
        top_k=-1,
        top_p=0.9,
        stop=["x", 9],
        logprobs=0,
        min_tokens=2,
        ignore_eos=True,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}},
    )
    message = asked_of(asked, choice([1, 2, 3], 17, seed=5, guide=asked.guide), "r-0")
    assert list(message.tokenized.input_token_ids) == [1, 2, 3]
    assert (message.request_id, message.max_tokens, message.streaming) == ("r-0", 17, True)
    sampling = message.sampling_config
    assert (sampling.temperature, sampling.seed, sampling.min_tokens) == (0.5, 5, 2)
    assert not sampling.HasField("top_k") and not sampling.HasField("min_p")
    assert (sampling.beam_width, sampling.num_return_sequences) == (1, 1)
    assert list(message.stop) == ["x"] and list(message.stop_token_ids) == [9]
    assert message.output_config.logprobs == 1 and message.ignore_eos
    assert json.loads(message.guided_decoding.guide) == {"a": 1}


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300))
def test_the_prompt_is_written_as_it_is(tokens: list[int]) -> None:
    for each in (tokens, np.array(tokens, np.uint32)):
        read = engine_request(request(), choice(each, 5, seed=3), "r", 7)
        written, facts = read.body, read.facts
        message = pb.GenerateRequest.FromString(written)
        assert list(message.tokenized.input_token_ids) == tokens
        assert (facts.prompt.isl, facts.largest_token) == (len(tokens), max(tokens))


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300),
    st.booleans(),
    st.none() | st.integers(0, 5),
    st.none() | st.integers(0, 2**63 - 1),
)
async def test_a_request_has_the_facts_that_are_read_from_it(
    tokens: list[int], stream: bool, adapter: int | None, salt: int | None
) -> None:
    """The dispatcher gets them as they are, where other ports have it read the request."""
    reader = RequestReader(16)
    prompt = await PromptReader(None, reader).hashed(tokens, adapter, salt)  # type: ignore[arg-type]
    made = Choice(0, prompt, 5, adapter=adapter)
    read = engine_request(request(stream=stream), made, "r", salt)
    body, facts = read.body, read.facts
    found = read_generate(body, 16)
    assert replace(facts, prompt=found.prompt) == found
    assert facts.prompt.isl == found.prompt.isl
    assert facts.prompt.cache_namespace == found.prompt.cache_namespace
    assert list(facts.prompt.sequence_hashes) == list(found.prompt.sequence_hashes)
    reader.close()


def test_a_json_object_is_any_object() -> None:
    asked = request(response_format={"type": "json_object"})
    message = asked_of(asked, choice([1], 1, guide=asked.guide), "r")
    assert json.loads(message.guided_decoding.guide) == {"type": "object"}
    plain = asked_of(request(), choice([1], 1), "r")
    assert not plain.HasField("guided_decoding") and not plain.HasField("output_config")


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "stream": st.booleans(),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "min_tokens": st.integers(0, 2),
        "top_k": st.sampled_from([-1, 0, 5]),
        **{name: st.sampled_from([0.5, 1.0]) for name in PASSED_ON},
        "stop": st.sampled_from(["x", ["y", 9]]),
        "stop_token_ids": st.just([4]),
        "logprobs": st.integers(0, 2),
        "nvext": st.just({"greed_sampling": True}),
    },
)


@given(st.lists(st.tuples(SETTINGS, st.none() | st.integers(0, 3)), min_size=1, max_size=6))
def test_a_request_says_the_same_whatever_was_asked_before(
    asked: list[tuple[dict[str, Any], int | None]],
) -> None:
    """Settings that are written once are those of each request that asks for the same."""
    for settings, adapter in asked:
        wanted = request(**settings)
        message = asked_of(wanted, choice([1, 2], 300, adapter=adapter), "r-0")
        sampling = message.sampling_config
        for name in PASSED_ON:
            said = getattr(sampling, name) if sampling.HasField(name) else None
            assert said == getattr(wanted, name)
        top_k = 1 if "nvext" in settings else max(0, settings.get("top_k", 0))
        assert (sampling.top_k, sampling.HasField("top_k")) == (top_k, top_k > 0)
        assert (message.request_id, message.max_tokens) == ("r-0", 300)
        assert message.streaming == wanted.wants_stream
        assert message.ignore_eos == settings.get("ignore_eos", False)
        included = settings.get("include_stop_str_in_output", False)
        assert message.include_stop_token_in_output == included
        assert sampling.min_tokens == settings.get("min_tokens", 0)
        assert list(message.stop) == wanted.stop_strings
        assert list(message.stop_token_ids) == wanted.stop_ids
        assert message.HasField("output_config") == ("logprobs" in settings)
        assert message.HasField("lora_config") == (adapter is not None)
        assert message.lora_config.task_id == (adapter or 0)


def test_settings_that_nobody_asks_for_again_are_not_kept_for_ever() -> None:
    for n in range(MOST_KEPT * 3):
        engine_request(request(temperature=n / MOST_KEPT / 3), choice([1], 1), "r")
        assert kept_settings() <= MOST_KEPT
