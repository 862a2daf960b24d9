"""Logprobs of prompts: `echo` with `logprobs`, as lm-eval asks for loglikelihoods, `max_tokens: 0`
and `logit_bias`; from an engine that computes them, and from engines that cannot."""

import json
from collections.abc import AsyncIterator
from operator import itemgetter
from typing import Any

import pytest
from support.engines.scoring_engine import answer_to, greedy, scored, scoring_engine
from support.fake_engine import FakeEngine, complete
from support.servers.http_engine import HttpEngine
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.server.mock_process import MockEnginesConfig
from dynamo_router.workers.trtllm_proto import pb

PATH = "/v1/completions"
PROMPTS = [[5, 9, 60, 3], [7, greedy(7), greedy(greedy(7))], [9, 4000], [11] * 40]
LM_EVAL = {
    "model": "tiny",
    "prompt": PROMPTS,
    "temperature": 0,
    "max_tokens": 1,
    "logprobs": 1,
    "seed": 1234,
    "echo": True,
}
"""A request of lm-eval's model `local-completions` for loglikelihoods (0.4.9, with token ids)."""


def loglikelihoods(answer: Any, contexts: list[int]) -> list[tuple[float, bool]]:
    """What lm-eval makes of an answer: of each prompt the logprob of what follows its context, and
    whether those are the likeliest tokens."""
    found = []
    choices = sorted(answer["choices"], key=itemgetter("index"))
    for choice, context in zip(choices, contexts, strict=True):
        logprobs = choice["logprobs"]
        own = logprobs["token_logprobs"][context:-1]
        likeliest = logprobs["top_logprobs"][context:-1]
        is_greedy = all(mine == max(top.values()) for mine, top in zip(own, likeliest, strict=True))
        found.append((sum(own), is_greedy))
    return found


@pytest.fixture
async def engine() -> AsyncIterator[HttpEngine]:
    async with scoring_engine() as made:
        yield made


@pytest.fixture
async def served(engine: HttpEngine) -> AsyncIterator[Served]:
    async with openai_serving(workers=(engine.url,)) as made:
        yield made


@pytest.mark.parametrize("contexts", [[1, 1, 1, 1], [2, 2, 1, 30], [3, 1, 1, 39]])
async def test_lm_eval_gets_what_the_engine_computes(served: Served, contexts: list[int]) -> None:
    status, told = await served.post(PATH, LM_EVAL)
    assert status == 200
    direct = loglikelihoods(answer_to(LM_EVAL), contexts)
    assert loglikelihoods(told, contexts) == direct
    assert {is_greedy for _, is_greedy in direct} == {True, False}


async def test_all_numbers_are_the_engines(served: Served) -> None:
    for most in (0, 1, 3):
        body = {**LM_EVAL, "logprobs": most, "max_tokens": 3}
        _, told = await served.post(PATH, body)
        direct = answer_to(body)
        for ours, theirs in zip(told["choices"], direct["choices"], strict=True):
            ours, theirs = ours["logprobs"], theirs["logprobs"]
            assert ours["token_logprobs"] == theirs["token_logprobs"]
            assert ours["token_logprobs"][0] is None and ours["top_logprobs"][0] is None
            for mine, other in zip(
                ours["top_logprobs"][1:], theirs["top_logprobs"][1:], strict=True
            ):
                assert sorted(mine.values()) == sorted(set(other.values()))
            lengths = {len(ours[name]) for name in ours}
            assert lengths == {len(theirs["tokens"])}
            assert ours["text_offset"] == sorted(ours["text_offset"])


async def test_the_prompt_alone(served: Served, engine: HttpEngine) -> None:
    """`max_tokens: 0`: nothing is generated for the client."""
    for more in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        body = {**LM_EVAL, "prompt": PROMPTS[0], "max_tokens": 0, **more}
        async with served.session.post(served.url + PATH, json=body) as answer:
            assert answer.status == 200
            text = await answer.text()
        if more:
            events = [json.loads(line[6:]) for line in text.split("\n\n") if line[:7] == "data: {"]
            (choice,) = events[0]["choices"]
            usage = events[-1]["usage"]
        else:
            told = json.loads(text)
            (choice,), usage = told["choices"], told["usage"]
        own = [scored(a, b, 1)[b] for a, b in zip(PROMPTS[0], PROMPTS[0][1:], strict=False)]
        assert choice["logprobs"]["token_logprobs"] == [None, *own]
        assert choice["finish_reason"] == "length"
        assert usage["completion_tokens"] == 0 and usage["prompt_tokens"] == 4
        assert usage["total_tokens"] == 4
    detokenized = (await served.post("/detokenize", {"tokens": PROMPTS[0]}))[1]["prompt"]
    body = {**LM_EVAL, "prompt": PROMPTS[0], "max_tokens": 0, "logprobs": None}
    status, told = await served.post(PATH, body)
    assert told["choices"][0]["text"] == detokenized and told["choices"][0]["logprobs"] is None
    assert all(asked["max_tokens"] == 1 and not asked["stream"] for asked in engine.generations)


async def test_texts_are_scored_as_their_tokens(served: Served) -> None:
    ids = (await served.post("/tokenize", {"prompt": "to be or not"}))[1]["tokens"]
    body = {**LM_EVAL, "prompt": "to be or not"}
    _, by_text = await served.post(PATH, body)
    _, by_ids = await served.post(PATH, {**body, "prompt": ids})
    assert by_text["choices"] == by_ids["choices"]
    assert by_text["choices"][0]["text"].startswith("to be or not")


async def test_a_stream_has_the_logprobs_of_the_prompt_too(served: Served) -> None:
    body = {**LM_EVAL, "prompt": PROMPTS[0], "max_tokens": 2}
    _, whole = await served.post(PATH, body)
    stream = await served.client.completions.create(**body, stream=True)
    found: list[Any] = []
    async for part in stream:
        if part.choices[0].logprobs is not None:
            found += part.choices[0].logprobs.token_logprobs or []
    assert found == whole["choices"][0]["logprobs"]["token_logprobs"]


async def test_several_answers_are_scored_each(served: Served, engine: HttpEngine) -> None:
    body = {**LM_EVAL, "prompt": [PROMPTS[3]], "n": 3, "temperature": 1}
    status, told = await served.post(PATH, body)
    assert status == 200 and len(told["choices"]) == 3
    assert len({json.dumps(choice["logprobs"]) for choice in told["choices"]}) == 1
    assert not any(asked["stream"] for asked in engine.generations)


async def test_biases_reach_the_engine_as_they_are(served: Served, engine: HttpEngine) -> None:
    bias = {"5": 1, "4095": -100, "0": 0.5}
    body = {"model": "tiny", "max_tokens": 1, "logit_bias": bias}
    for path, more in (
        (PATH, {"prompt": "a", "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        assert (await served.post(path, {**body, **more}))[0] == 200
    assert len(engine.generations) == 3
    assert all(asked["logit_bias"] == bias for asked in engine.generations)
    await served.post(PATH, {**body, "prompt": "a", "logit_bias": {}})
    assert "logit_bias" not in engine.generations[-1]


@pytest.mark.parametrize("bias", [
    {"4096": 1}, {"-1": 1}, {"a": 1}, {"": 1}, {"1.5": 1}, {"9" * 400: 1}, {"5": 101},
    {"5": -100.1}, {"5": 1e300}, {"5": "1"}, {"5": None}, {"5": True}, [5], 5, "5", True,
    {str(each): 1 for each in range(4097)},
])  # fmt: skip
async def test_what_is_no_bias_is_refused_by_name(served: Served, bias: Any) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "logit_bias": bias}
    status, told = await served.post(PATH, body)
    assert status == 400 and "logit_bias" in told["error"]["param"]


async def unscored(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    yield complete(request, 64)


async def test_an_engine_that_gives_no_logprobs_of_a_prompt() -> None:
    """TensorRT-LLM's protocol has them; an engine that leaves them out is no success."""
    async with openai_serving(FakeEngine(unscored)) as served:
        status, told = await served.post(PATH, LM_EVAL)
        assert (status, told["error"]["param"]) == (400, "echo")


@pytest.mark.parametrize("first", [True, False])
async def test_an_engine_of_another_protocol_that_gives_them(first: bool) -> None:
    """With something in the place of the first token's, or without."""

    async def scores(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        assert request.output_config.prompt_logprobs == 1 and not request.streaming
        ids = list(request.tokenized.input_token_ids)
        last = complete(request, 64)
        if first:
            last.complete.prompt_logprobs.add(token_id=ids[0])
        for before, token in zip(ids, ids[1:], strict=False):
            found = scored(before, token, 1)
            added = last.complete.prompt_logprobs.add(token_id=token, logprob=found[token])
            for each, value in found.items():
                added.top_logprobs.add(token_id=each, logprob=value)
        last.complete.logprobs.add(token_id=64, logprob=-0.5)
        yield last

    engine = FakeEngine(scores)
    async with openai_serving(engine) as served:
        _, told = await served.post(PATH, LM_EVAL)
        contexts = [1, 1, 1, 1]
        assert loglikelihoods(told, contexts) == loglikelihoods(answer_to(LM_EVAL), contexts)


async def test_a_protocol_without_a_word_for_it_is_a_400_by_name() -> None:
    """A mock engine refuses biases, logprobs of prompts and words to leave out, and the answer
    says which field."""
    mocks = MockEnginesConfig(mockers=1)
    async with openai_serving(mock_engines=mocks, model_id="tiny") as served:
        status, told = await served.post(PATH, LM_EVAL)
        assert (status, told["error"]["param"]) == (400, "echo"), told
        for field, value in {"logit_bias": {"5": 1}, "bad_words": ["no"]}.items():
            body = {"model": "tiny", "prompt": "a", "max_tokens": 1, field: value}
            status, told = await served.post(PATH, body)
            assert (status, told["error"]["param"]) == (400, field), told


async def test_engines_get_a_number_for_each_of_the_vocabulary() -> None:
    engine = FakeEngine(unscored)
    async with openai_serving(engine) as served:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "logit_bias": {"5": 2, "9": -3}}
        assert (await served.post(PATH, body))[0] == 200
    (asked,) = engine.requests
    assert len(asked.embedding_bias) == 4096
    assert {at: value for at, value in enumerate(asked.embedding_bias) if value} == {5: 2, 9: -3}
    assert isinstance(asked, pb.GenerateRequest)


async def test_answers_have_a_fingerprint_of_what_computes_them(served: Served) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    found = {(await served.post(PATH, body))[1]["system_fingerprint"] for _ in range(2)}
    (only,) = found
    assert only.startswith("fp_")
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    assert (await served.post("/v1/chat/completions", chat))[1]["system_fingerprint"] == only
