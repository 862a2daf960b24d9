"""Answers of engines over HTTP as TensorRT-LLM's, whatever they claim."""

import json
from typing import Any

import pytest
from support.fake_engine import prompt
from support.servers.http_engine import answers_of, part, usage

from dynamo_router.base.errors import StatusCode, WorkerError
from dynamo_router.workers.dialects import for_prefill, handoff_of
from dynamo_router.workers.dialects.openai_answers import MissingTokens, reader_of
from dynamo_router.workers.dialects.openai_errors import error_of
from dynamo_router.workers.dialects.openai_facts import (
    completion_facts,
    llama_facts,
    model_in,
    mooncake_ids,
    sglang_facts,
)
from dynamo_router.workers.dialects.openai_requests import EngineKind
from dynamo_router.workers.failures import EngineCallError, Origin
from dynamo_router.workers.transfer_facts import BOOTSTRAP, NONE, TRTLLM_SERVE, TransferFacts
from dynamo_router.workers.trtllm_proto import pb

COMPLETIONS, LLAMA, SGLANG = EngineKind.COMPLETIONS, EngineKind.LLAMA, EngineKind.SGLANG


def read(kind: EngineKind, request: Any, *events: Any) -> tuple[list[int], Any]:
    reader = reader_of(kind, request)
    messages = [reader.read(e if isinstance(e, bytes) else json.dumps(e).encode()) for e in events]
    return answers_of([*(message for message in messages if message), reader.complete()])


def llama(text: str, *ids: int, told: int, **more: Any) -> dict[str, Any]:
    return {"content": text, "tokens": list(ids), "stop": False, "tokens_predicted": told, **more}


def end(told: int, why: str = "limit", **more: Any) -> dict[str, Any]:
    return {
        "content": "",
        "tokens": [],
        "stop": True,
        "stop_type": why,
        "tokens_predicted": told,
    } | more


def test_a_stream_of_completions() -> None:
    tokens, last = read(
        COMPLETIONS, prompt("r1", 8), part(11), part(12, 13), part(reason="stop", stop_reason=13),
        usage(5), b"[DONE]",
    )  # fmt: skip
    assert tokens == list(last.output_token_ids) == [11, 12, 13]
    assert (last.finish_reason, last.matched_token_id, last.cached_tokens) == ("stop", 13, 5)
    assert (last.prompt_tokens, last.completion_tokens) == (8, 3)


def sglang(*ids: int, count: int, reason: Any = None, **more: Any) -> dict[str, Any]:
    meta = {"completion_tokens": count, "cached_tokens": 4, "finish_reason": reason, **more}
    return {"text": "x", "output_ids": list(ids), "meta_info": meta}


LENGTH = {"type": "length", "length": 3}


@pytest.mark.parametrize("cumulative", [True, False])
def test_a_stream_of_sglang(cumulative: bool) -> None:
    """Its parts have all tokens so far, or the new ones."""
    second = (11, 12, 13) if cumulative else (12, 13)
    tokens, last = read(
        SGLANG, prompt("r1", 8), sglang(11, count=1), sglang(*second, count=3),
        sglang(*((11, 12, 13) if cumulative else ()), count=3, reason=LENGTH), b"[DONE]",
    )  # fmt: skip
    assert tokens == list(last.output_token_ids) == [11, 12, 13]
    assert (last.finish_reason, last.cached_tokens, last.prompt_tokens) == ("length", 4, 8)


def test_what_ended_an_answer_of_sglang() -> None:
    _, last = read(
        SGLANG, prompt("r1", 8), sglang(11, count=1, reason={"type": "stop", "matched": 11})
    )
    assert (last.finish_reason, last.matched_token_id) == ("stop", 11)
    _, last = read(
        SGLANG, prompt("r1", 8), sglang(11, count=1, reason={"type": "stop", "matched": "!"})
    )
    assert last.matched_stop_str == "!"


def test_logprobs_of_sglang() -> None:
    request = prompt("r1", 8)
    request.output_config.logprobs = 2
    logprobs = {
        "output_token_logprobs": [[-0.5, 11, None], [-0.25, 12, "b"]],
        "output_top_logprobs": [[[-0.5, 11, None], [-1.0, 9, None]], None],
    }
    first = {key: value[:1] for key, value in logprobs.items()}
    _, last = read(
        SGLANG, request, sglang(11, count=1, **first),
        sglang(11, 12, count=2, reason=LENGTH, **logprobs),
    )  # fmt: skip
    assert [(each.token_id, each.logprob) for each in last.logprobs] == [(11, -0.5), (12, -0.25)]
    assert [top.token_id for top in last.logprobs[0].top_logprobs] == [11, 9]


@pytest.mark.parametrize(
    "part, reason",
    [
        (sglang(11, count=2), "fewer token ids than tokens"),
        (sglang(*range(5), count=5), "more than the 4 tokens"),
        (sglang(count=0, reason={"type": "abort", "message": "KV transfer"}), "aborted .* KV tr"),
        (sglang(-1, count=1), "cannot be read"),
        ({"meta_info": {"completion_tokens": -1}}, "cannot be read"),
        (sglang(11, count=1), "without a reason"),
    ],
)
def test_answers_of_sglang_that_are_none(part: Any, reason: str) -> None:
    with pytest.raises(WorkerError, match=reason):
        read(SGLANG, prompt("r1", 8), part)


def test_a_prefill_of_sglang_may_end_without_a_word() -> None:
    asked = pb.GenerateRequest.FromString(for_prefill(prompt("r1", 8).SerializeToString()))
    asked.streaming = False
    reader = reader_of(SGLANG, asked)
    assert pb.GenerateResponse.FromString(reader.complete()).complete.finish_reason == "length"


def test_what_tensorrt_llm_hands_over() -> None:
    """With the phase and the usage that the decode worker is to be sent."""
    for place in ("choice", "answer"):
        params = {"request_type": "context_only", "ctx_request_id": 7, "opaque_state": "AA=="}
        answer: dict[str, Any] = part(11, reason="length")
        (answer["choices"][0] if place == "choice" else answer)["disaggregated_params"] = params
        answer["usage"] = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
        reader = reader_of(EngineKind.TRTLLM, prompt("r1", 8))
        reader.read(json.dumps(answer).encode())
        handed = json.loads(handoff_of(reader.complete()) or b"")["disaggregated_params"]
        assert handed["request_type"] == "generation_only"
        assert (handed["ctx_request_id"], handed["opaque_state"]) == (7, "AA==")
        assert handed["ctx_usage"]["prompt_tokens"] == 8


def test_what_sglang_says_of_itself() -> None:
    model = model_in(b'{"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 512}]}')
    assert model.kind is SGLANG
    info = {
        "version": "0.5", "disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998,
        "page_size": 16, "tp_size": 2, "pp_size": 1, "max_total_num_tokens": 6400,
        "max_running_requests": 9, "model_path": "/m",
    }  # fmt: skip
    facts = sglang_facts(model, json.dumps(info).encode(), "10.0.0.5", 64)
    assert (facts.version, facts.tensor_parallel_size, facts.max_seq_len) == ("0.5", 2, 512)
    assert facts.settings == {"total_kv_blocks": 100, "max_num_seqs": 9}
    assert facts.transfer == TransferFacts(
        connector=BOOTSTRAP, role="prefill", host="10.0.0.5", port=8998, block_size=16
    )
    assert not facts.transfer.runs_whole
    for more in ({"disaggregation_mode": "null"}, {"disaggregation_mode": None}):
        alone = sglang_facts(model, json.dumps(info | more).encode(), "10.0.0.5", 64)
        assert alone.transfer == TransferFacts(connector=NONE) and alone.transfer.runs_whole
    assert sglang_facts(model, None, "h", 64).transfer.connector == NONE
    with pytest.raises(WorkerError, match="/server_info"):
        sglang_facts(model, b"{", "h", 64)


def test_the_ids_at_a_bootstrap_server() -> None:
    ranks = {"1": {"engine_id": "b"}, "0": {"engine_id": "a", "worker_addr": {}}}
    assert mooncake_ids(json.dumps(ranks).encode()) == ("a", "b")
    for body, reason in ((b"[]", "cannot be read"), (b'{"1": {"engine_id": "b"}}', "leaves ranks")):
        with pytest.raises(WorkerError, match=reason):
            mooncake_ids(body)


def test_the_build_of_an_engine() -> None:
    model = model_in(b'{"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}')
    facts = completion_facts(model, None, 64, b'{"version": "1.3"}')
    assert (facts.version, facts.transfer.connector) == ("1.3", TRTLLM_SERVE)
    assert completion_facts(model, None, 64, b"pong").version == ""


def test_logprobs_by_token_id() -> None:
    request = prompt("r1", 8)
    request.output_config.logprobs = 2
    told = {
        "tokens": ["token_id:11", "unnamed", "token_id:99999999999"],
        "token_logprobs": [-0.5, -1.0, -2.0],
        "top_logprobs": [{"token_id:11": -0.5, "token_id:3": -2.5, "b": -3.0}, None, {}],
    }
    _, last = read(COMPLETIONS, request, part(11, reason="stop", logprobs=told))
    (one,) = last.logprobs
    assert (one.token_id, one.logprob) == (11, -0.5)
    assert [(top.token_id, top.logprob) for top in one.top_logprobs] == [(11, -0.5), (3, -2.5)]


def test_a_stream_of_llama() -> None:
    request = prompt("r1", 8)
    request.output_config.logprobs = 1
    likely = [{"id": 11, "logprob": -1.0, "top_logprobs": [{"id": 4, "logprob": -0.5}]}]
    reader = reader_of(LLAMA, request)
    first = llama("a", 11, told=1, timings={"cache_n": 6}, completion_probabilities=likely)
    chunk = reader.read(json.dumps(first).encode())
    assert chunk is not None
    done = end(1, "word", stopping_word="!", **{"timings/cache_n": 6})
    assert reader.read(json.dumps(done).encode()) is None and reader.done
    tokens, last = answers_of([chunk, reader.complete()])
    assert (tokens, last.finish_reason, last.matched_stop_str) == ([11], "stop", "!")
    assert last.cached_tokens == 6 and last.logprobs[0].top_logprobs[0].token_id == 4


@pytest.mark.parametrize(
    "text, ids, expected",
    [
        (b"\xe6\xbc\xa2", [230, 188, 162], [230, 188, 162]),  # as it was generated
        (b"\xe6\xbc\xa2", [300, 162], [300, 162]),  # as it would be written otherwise
        (b"\xe6\xbc\xa2", [7], [7]),
        (b"ab\xe6\xbc\xa2", [1, 2, 230, 188, 162], [230, 188, 162]),  # a, b were told before
    ],
)
def test_tokens_inside_a_character_are_asked_for(
    text: bytes, ids: list[int], expected: list[int]
) -> None:
    reader = reader_of(LLAMA, prompt("r1", 8))
    with pytest.raises(MissingTokens) as missing:
        reader.read(json.dumps(llama(text.decode(), 162, told=3)).encode())
    assert missing.value.text == text.decode()
    filled = reader.fill(ids)
    more = reader.read(json.dumps(llama("z", 122, told=4)).encode())
    assert filled is not None and more is not None
    reader.read(json.dumps(end(4)).encode())
    tokens, last = answers_of([filled, more, reader.complete()])
    assert tokens == list(last.output_token_ids) == [*expected, 122]


def test_a_character_that_never_became_whole_has_no_tokens() -> None:
    tokens, last = read(LLAMA, prompt("r1", 8), llama("a", 97, told=1), end(3))
    assert tokens == [97] and last.completion_tokens == 1


@pytest.mark.parametrize(
    "kind, event",
    [
        (COMPLETIONS, b"no json"),
        (COMPLETIONS, b'{"error": ' + b"[" * 100_000),
        (COMPLETIONS, b"[]"),
        (COMPLETIONS, b'{"choices": [{"text": "\xff"}]}'),
        (COMPLETIONS, part(-1)),
        (COMPLETIONS, part(2**32)),
        (COMPLETIONS, {"choices": [{"token_ids": ["1"]}]}),
        (COMPLETIONS, {"choices": [{"token_ids": [True]}]}),
        (COMPLETIONS, part(1, 2, 3, 4, 5)),
        (COMPLETIONS, {"choices": [part(1)["choices"][0]] * 2}),
        (COMPLETIONS, usage(-1)),
        (COMPLETIONS, {"choices": 3}),
        (LLAMA, llama("abcde", 1, 2, 3, 4, 5, told=5)),
        (LLAMA, llama("a", 1, told=10**9)),
        (LLAMA, llama("a", 1, told=10**10)),
        (LLAMA, llama("a", 1, told=1, timings={"cache_n": "many"})),
        (LLAMA, {"tokens": {"0": 1}}),
    ],
)
def test_what_is_no_answer_is_the_engines_failure(kind: EngineKind, event: Any) -> None:
    with pytest.raises(WorkerError):
        read(kind, prompt("r1", 8), event)


@pytest.mark.parametrize("kind", EngineKind)
def test_an_answer_without_an_end(kind: EngineKind) -> None:
    first = part(1) if kind is COMPLETIONS else llama("a", 1, told=1)
    with pytest.raises(WorkerError, match="without a reason"):
        read(kind, prompt("r1", 8), first)


def test_more_cached_than_there_is() -> None:
    _, last = read(COMPLETIONS, prompt("r1", 8), part(1, reason="stop"), usage(1000))
    assert last.cached_tokens == 8


@pytest.mark.parametrize(
    "kind, event",
    [
        (COMPLETIONS, {"choices": [{"text": "a"}]}),
        (LLAMA, {"content": "a", "tokens_predicted": 1}),
        (LLAMA, {"content": "a", "stop": False}),
    ],
)
def test_engines_that_tell_no_ids_are_refused_by_name(kind: EngineKind, event: Any) -> None:
    with pytest.raises(EngineCallError, match="no token ids") as error:
        read(kind, prompt("r1", 8), event)
    assert error.value.code() is StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "error, code, words",
    [
        ({"message": "busy", "code": 429}, "RESOURCE_EXHAUSTED", "busy"),
        ({"message": "bad", "code": "400"}, "INVALID_ARGUMENT", "bad"),
        ({"message": "oh", "code": "weird"}, "INTERNAL", "oh"),
        ("just words", "INTERNAL", "just words"),
        ([1], "INTERNAL", "[1]"),
    ],
)
def test_an_error_in_mid_stream(error: Any, code: str, words: str) -> None:
    for kind in EngineKind:
        with pytest.raises(EngineCallError, match="^" + words.replace("[", r"\[")) as found:
            read(kind, prompt("r1", 8), {"error": error})
        assert found.value.code().name == code and found.value.origin is Origin.ENGINE


@pytest.mark.parametrize(
    "status, code",
    [
        (301, "INTERNAL"), (400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (404, "NOT_FOUND"),
        (418, "INTERNAL"), (422, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"), (501, "UNIMPLEMENTED"), (503, "UNAVAILABLE"),
        (529, "RESOURCE_EXHAUSTED"),
    ],
)  # fmt: skip
def test_statuses(status: int, code: str) -> None:
    error = error_of(status, b'{"error": {"message": "words"}}', "7")
    assert error.code().name == code and error.origin is Origin.ENGINE
    assert error.details() == f"HTTP {status}: words (retry after 7)"


def test_a_body_that_was_too_long_is_the_requests_fault() -> None:
    assert error_of(413).origin is Origin.REQUEST_SIZE


@pytest.mark.parametrize(
    "body, words",
    [
        (b"", "HTTP 500"),
        (b"<html>\xff", "HTTP 500: <html>\ufffd"),
        (b'{"detail": "d"}', "HTTP 500: d"),
        (b'{"object": "error", "message": "m"}', "HTTP 500: m"),
        (b"[" * 5000, "HTTP 500: [["),
    ],
)
def test_errors_in_any_shape(body: bytes, words: str) -> None:
    details = error_of(500, body).details()
    assert details.startswith(words) and len(details) <= 1024


def test_facts_of_vllm() -> None:
    listed = {
        "data": [{"id": "ad1", "parent": "m"}, {"id": "m", "owned_by": "vllm", "max_model_len": 9}]
    }
    model = model_in(json.dumps(listed).encode())
    page = b'a 1\nvllm:cache_config_info{block_size="32",num_gpu_blocks="64",x="\\"y"} 1.0\n'
    facts = completion_facts(model, page, 16)
    assert (facts.model_id, facts.max_seq_len, facts.backend) == ("m", 9, "vllm")
    assert facts.settings == {"total_kv_blocks": 128}
    for lie in (
        None,
        b"",
        b"vllm:cache_config_info{",
        b'vllm:cache_config_info{block_size="-1"} 1\n',
    ):
        assert completion_facts(model, lie, 16).settings == {}


def test_facts_of_llama() -> None:
    model = model_in(
        b'{"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_vocab": 5, "n_ctx": 7}}]}'
    )
    assert model.kind is LLAMA
    props = b'{"default_generation_settings": {"n_ctx": 2048}, "total_slots": 2}'
    facts = llama_facts(model, props)
    assert (facts.max_seq_len, facts.vocab_size, facts.max_batch_size) == (2048, 5, 2)
    assert facts.settings == {"max_num_seqs": 2}
    assert llama_facts(model, None).max_seq_len == 7
    with pytest.raises(WorkerError, match="/props"):
        llama_facts(model, b'{"total_slots": "two"}')


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": []}', b'{"data": [{"id": 4}]}', b"<html>"])
def test_models_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(WorkerError, match="/v1/models"):
        model_in(body)
