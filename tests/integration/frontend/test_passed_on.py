"""Reranking and scoring: passed to engines over HTTP that have them, refused by name elsewhere."""

import json
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.servers.http_engine import HttpEngine, reply
from support.servers.openai_serving import openai_serving

PATHS = ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/classify", "/pooling")
RERANK = {"model": "ours", "query": "a", "documents": ["b", "c" * 40_000], "top_n": 1, "new": [1]}
RESULT = {"id": "r", "model": "tiny", "results": [{"index": 0, "relevance_score": 0.25}]}


def engine(answer: Any = RESULT, status: int = 200) -> HttpEngine:
    said = reply(json.dumps(answer).encode(), status=status)
    return HttpEngine(dict.fromkeys(PATHS, said))


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_reaches_the_engine_as_it_is(path: str) -> None:
    async with (
        engine() as made,
        openai_serving(workers=(made.url,), model_id="ours") as served,
    ):
        status, told = await served.post(path, RERANK)
        assert (status, told) == (200, {**RESULT, "model": "ours"})
        (asked,) = [each for each in made.asked if each.path == path]
        assert asked.body == {**RERANK, "model": "tiny"}


async def test_an_engine_without_the_route_is_a_404_by_name() -> None:
    async with (
        HttpEngine() as made,
        openai_serving(workers=(made.url,)) as served,
        openai_serving(FakeEngine()) as other,
    ):
        for frontend in (served, other):
            for path in PATHS:
                status, told = await frontend.post(path, {**RERANK, "model": "tiny"})
                assert status == 404 and path in told["error"]["message"]


async def test_a_fleet_of_both_kinds_has_the_engines_that_can_answer() -> None:
    async with (
        engine() as made,
        openai_serving(FakeEngine(), workers=(made.url,), mixed_models=True) as served,
    ):
        for _ in range(6):
            assert (await served.post("/rerank", {**RERANK, "model": "tiny"}))[0] == 200


@pytest.mark.parametrize("status, seen", [(400, 400), (422, 400), (503, 503), (500, 500)])
async def test_what_the_engine_says_of_it_is_passed_on(status: int, seen: int) -> None:
    async with (
        engine({"error": {"message": "top_n is bad"}}, status) as made,
        openai_serving(workers=(made.url,)) as served,
    ):
        found, told = await served.post("/rerank", {**RERANK, "model": "tiny"})
        assert found == seen and "top_n is bad" in told["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"a"', b"\xff", b"[" * 5000])
async def test_what_is_no_object_is_400(body: bytes) -> None:
    async with engine() as made, openai_serving(workers=(made.url,)) as served:
        assert (await served.post("/score", body))[0] == 400
        assert not [each for each in made.asked if each.path == "/score"]


async def test_an_answer_that_cannot_be_read_is_the_engines_fault() -> None:
    async with engine([1]) as made, openai_serving(workers=(made.url,)) as served:
        assert (await served.post("/score", {"model": "tiny"}))[0] == 500
