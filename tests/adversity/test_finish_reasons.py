"""Why an engine says that its answer ended, at each listener: an error is a failure, and a reason
that the router does not know is the engine's word, not another one."""

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.adversity.one_engine import (
    KINDS,
    LISTENERS,
    ask_completions,
    ask_messages,
    ask_responses,
    one_engine,
)
from support.fake_engine import FakeEngine, chunk, complete
from support.polling import until
from support.servers.openai_serving import openai_serving

Code = grpc.StatusCode
ALL = {**LISTENERS, "responses": ask_responses, "messages": ask_messages}


@pytest.mark.parametrize("begun", [False, True], ids=["empty", "begun"])
@pytest.mark.parametrize("listener", ALL)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_engines_error_is_a_failure(kind: str, listener: str, begun: bool) -> None:
    async with one_engine(kind, reason="error", begun=begun) as (served, _):
        for streamed in (False, True):
            shown = await ALL[listener](served, streamed)
            assert "ended the answer with an error" in shown, shown
            assert "abort" not in shown and '"completed"' not in shown, shown
            if listener == "grpc":
                assert shown.startswith("StatusCode.INTERNAL"), shown
            elif not shown.startswith("500"):
                assert streamed and '"error"' in shown, shown


@pytest.mark.parametrize("listener", ["completions", "chat"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_unknown_reason_is_the_engines_word(kind: str, listener: str) -> None:
    async with one_engine(kind, reason="repetition", begun=True) as (served, _):
        for streamed in (False, True):
            shown = await ALL[listener](served, streamed)
            assert shown.startswith("200") and '"finish_reason":"repetition"' in shown, shown


@pytest.mark.parametrize(
    "listener, shown_as",
    [("messages", '"stop_reason":"end_turn"'), ("responses", '"status":"completed"')],
)
async def test_an_unknown_reason_is_an_end_where_the_api_has_no_word(
    listener: str, shown_as: str
) -> None:
    async with one_engine("grpc", reason="repetition", begun=True) as (served, _):
        for streamed in (False, True):
            shown = await ALL[listener](served, streamed)
            assert shown.startswith("200") and shown_as in shown, shown
            assert "failed" not in shown and "error" not in shown.replace('"error":null', ""), shown


@pytest.mark.parametrize("reason", ["boom\n2026 [info] x", "\x1b[2Jboom", "boom" * 2500])
@pytest.mark.parametrize("listener", ["completions", "grpc"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_reason_that_is_no_word_fails_the_answer(
    kind: str, listener: str, reason: str
) -> None:
    async with one_engine(kind, reason=reason, begun=True) as (served, _):
        for streamed in (False, True):
            shown = await ALL[listener](served, streamed)
            assert "a reason that is no word" in shown and "boom" not in shown, shown[:2000]


@pytest.mark.parametrize("reason, word", [("content_filter", "content_filter"), ("length", "max")])
async def test_responses_name_why_they_are_incomplete(reason: str, word: str) -> None:
    async with one_engine("grpc", reason=reason, begun=True) as (served, _):
        shown = await ask_responses(served, False)
        body = json.loads(shown[shown.index(" {") :])
        assert body["status"] == "incomplete" and word in body["incomplete_details"]["reason"]


async def test_another_engine_answers_where_nothing_was_sent_yet() -> None:
    async def broken(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        last = complete(request)
        last.complete.finish_reason = "error"
        yield last

    async def sound(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.streaming:
            yield chunk(request, 11)
        yield complete(request, 11)

    engines = [FakeEngine(broken, worker_id=1), FakeEngine(sound, worker_id=2)]
    async with openai_serving(*engines) as served:
        for turn in range(4):
            shown = await ask_completions(served, bool(turn % 2))
            assert shown.startswith("200") and '"finish_reason":"length"' in shown, shown
        assert engines[0].requests  # it was asked, too


@pytest.mark.parametrize("code", [Code.CANCELLED, Code.UNAVAILABLE, Code.INTERNAL])
@pytest.mark.parametrize("streamed", [True, False])
async def test_what_an_engine_does_after_a_stop_string_ends_no_answer(
    code: Any, streamed: bool
) -> None:
    """The frontend has found the stop string and told the engine, which fails instead of ending."""

    async def stopped(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk(request, 11, 12)
        await until(lambda: engine.aborted)
        await context.abort(code, "as you wish")

    async with openai_serving(FakeEngine(stopped)) as served:
        stop = (await served.post("/detokenize", {"tokens": [12]}))[1]["prompt"]
        body = {"model": "tiny", "prompt": "x", "max_tokens": 50, "stop": stop, "stream": streamed}
        async with served.session.post(f"{served.url}/v1/completions", json=body) as found:
            shown = await found.text()
        assert found.status == 200 and '"finish_reason":"stop"' in shown, shown
        assert '"error"' not in shown and shown.endswith("data: [DONE]\n\n") == streamed, shown


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.INTERNAL])
@pytest.mark.parametrize("listener", ["completions", "chat", "grpc"])
async def test_an_engine_that_fails_behind_its_last_word_has_answered(
    listener: str, code: Any
) -> None:
    async def falls(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.streaming:
            yield chunk(request, 11)
        yield complete(request, 11)
        await context.abort(code, "too late")

    async with openai_serving(FakeEngine(falls)) as served:
        for streamed in (False, True):
            shown = await ALL[listener](served, streamed)
            assert shown.startswith("200"), shown
            assert '"error"' not in shown and "too late" not in shown, shown
