"""Long turns through each API that has conversations: with what is known of earlier ones, and
without, clients and engines see the same."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.chats.templates import GROUPED
from support.fake_engine import FakeEngine
from support.observability.exposition import families, values_of
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.bench.load.chat_bodies import APIS, Turn
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.frontend.processor import growing_template

CONTEXT = 1 << 20
TOOL = {"name": "f", "description": "the of and", "parameters": {"type": "object"}}
Sides = tuple[tuple[Served, FakeEngine], tuple[Served, FakeEngine]]


@pytest.fixture
async def sides(tmp_path: Path) -> AsyncIterator[Sides]:
    """One that keeps what it knows, and one that does not."""
    folder = tmp_path / "model"
    shutil.copytree(OWN_MODEL, folder)
    (folder / "chat_template.jinja").write_text(GROUPED)
    configs = [
        FrontendConfig(http_frontend=0, model_path=str(folder), tool_call_parser="hermes", **more)
        for more in ({}, {"token_cache_bytes": 0})
    ]
    engines = FakeEngine(), FakeEngine()
    async with (
        openai_serving(engines[0], frontend=configs[0], context=CONTEXT) as keeps,
        openai_serving(engines[1], frontend=configs[1], context=CONTEXT) as other,
    ):
        yield (keeps, engines[0]), (other, engines[1])


def a_turn(number: int) -> list[Turn]:
    call = Turn("assistant", json.dumps({"n": number}), f"c{number}", "f", "is it of")
    return [call, Turn("tool", f"{number} and it {'of the ' * 400}", f"c{number}")]


def chat(turns: int) -> list[Turn]:
    begun = [Turn("system", "it is the"), Turn("user", "and of " * 3000)]
    return begun + [each for number in range(turns) for each in a_turn(number)]


async def seen(side: tuple[Served, FakeEngine], path: str, body: bytes) -> Any:
    """What a client and the engine see of a request, but for what names the answer."""
    served, engine = side
    before = len(engine.requests)
    status, answer = await served.post(path, body)
    asked = [list(each.tokenized.input_token_ids) for each in engine.requests[before:]]
    for name in ("id", "created", "created_at", "completed_at", "output", "request_id"):
        answer.pop(name, None)
    return status, answer, asked


async def found_chars(served: Served) -> float:
    async with served.session.get(f"http://{served.server.http_address}/metrics") as answer:
        page = families(await answer.text())
    return values_of(page["dynamo_router_token_cache_characters"], "source")["cache"]


def body_of(api: str, turns: list[Turn], **more: Any) -> bytes:
    asked = APIS[api].body("tiny", turns, [TOOL], 5)
    return json.dumps({**asked, "stream": False, **more}).encode()


@pytest.mark.parametrize("api", APIS)
async def test_turns_are_what_they_are_without_what_is_known(sides: Sides, api: str) -> None:
    path = APIS[api].path
    for turns in range(3, 8):
        body = body_of(api, chat(turns))
        known, other = [await seen(side, path, body) for side in sides]
        assert known == other and known[0] == 200
    assert await found_chars(sides[0][0]) > 4 * 21_000  # the question was encoded once
    wrong = chat(7)
    wrong[-1] = Turn("tool", "of", "c99")
    bad = [
        body_of(api, wrong),
        body_of(api, chat(7), temperature=9),
        body_of(api, chat(7)).replace(b'"n\\": 6', b'"n\\": \\ud83d').replace(b'"n": 6', b'"n": x'),
        body_of(api, chat(7), **{"max_tokens" if api != "responses" else "max_output_tokens": -1}),
    ]
    for body in bad:
        known, other = [await seen(side, path, body) for side in sides]
        assert known == other
        assert known[0] == (200 if api == "chat" and body == bad[0] else 400)


async def test_tokens_of_a_long_turn_are_counted_as_they_are_asked_for(sides: Sides) -> None:
    path = "/v1/messages"
    for turns in (3, 4):
        asked = json.loads(body_of("messages", chat(turns)))
        asks = {name: asked[name] for name in ("model", "messages", "system", "tools")}
        counted = [
            await seen(side, f"{path}/count_tokens", json.dumps(asks).encode()) for side in sides
        ]
        known = await seen(sides[0], path, body_of("messages", chat(turns)))
        assert counted[0] == counted[1]
        assert counted[0][1]["input_tokens"] == len(known[2][0])


async def test_a_template_that_goes_on_wrongly_is_seen_and_given_up(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine gets what it wrote wrongly where a turn is checked, as the first is."""
    path, rendered = APIS["messages"].path, growing_template._Run.rendered

    def wrong(run: Any, *given: Any) -> Any:
        made = rendered(run, *given)
        return made if made.used is None else made._replace(text=["of", *made.text])

    monkeypatch.setattr(growing_template._Run, "rendered", wrong)
    for turns in range(3, 6):
        body = body_of("messages", chat(turns))
        known, other = [await seen(side, path, body) for side in sides]
        assert known == other and known[0] == 200
    served = sides[0][0]
    _, page = await served.get("/pools")
    assert page["pools"][0]["long_chats"].startswith("off: a turn was not what")
    async with served.session.get(f"http://{served.server.http_address}/metrics") as answer:
        checks = families(await answer.text())["dynamo_router_long_chat_checks"]
    assert values_of(checks, "result") == {"same": 0, "differs": 1, "unsure": 0}
