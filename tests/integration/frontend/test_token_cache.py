"""The token cache, and what is known of long chats, behind the routes of all APIs: who finds what,
and what is seen of it."""

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
from tokenizers import AddedToken, Tokenizer

from dynamo_router.bench.load.chat_bodies import APIS, Turn
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.frontend.processor import growing_template

CONTEXT = 1 << 20
TOOL = {"name": "f", "description": "the of and", "parameters": {"type": "object"}}
Sides = tuple[tuple[Served, FakeEngine], tuple[Served, FakeEngine]]
TEXT = "The same words, again and again. " * 300


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with openai_serving(FakeEngine()) as made:
        yield made


async def encoded(served: Served) -> float:
    """Characters that the tokenizer has seen of long prompts."""
    async with served.session.get(f"http://{served.server.http_address}/metrics") as answer:
        page = families(await answer.text())
    return values_of(page["dynamo_router_token_cache_characters"], "source")["tokenizer"]


async def test_routes_and_callers_share_what_tenants_do_not(served: Served) -> None:
    alice = {"x-tenant-id": "alice"}
    status, first = await served.post("/tokenize", {"prompt": TEXT}, headers=alice)
    assert status == 200 and await encoded(served) == len(TEXT)
    _, again = await served.post("/tokenize", {"prompt": TEXT}, headers=alice)
    assert again == first and await encoded(served) < len(TEXT) + 5000
    before = await encoded(served)
    completion = {"model": "tiny", "prompt": TEXT, "cache_salt": "alice"}
    status, refused = await served.post("/v1/completions", completion)
    assert status == 400 and "context length" in str(refused)  # it was tokenized
    assert await encoded(served) < before + 5000
    for headers in ({"x-tenant-id": "bob"}, {}):
        before = await encoded(served)
        _, other = await served.post("/tokenize", {"prompt": TEXT}, headers=headers)
        assert other == first and await encoded(served) == before + len(TEXT)


async def test_pools_say_whether_it_is_on(served: Served) -> None:
    _, seen = await served.get("/pools")
    assert [pool["token_cache"] for pool in seen["pools"]] == ["on"]
    config = FrontendConfig(http_frontend=0, token_cache_bytes=0)
    async with openai_serving(FakeEngine(), frontend=config) as other:
        _, seen = await other.get("/pools")
        assert [pool["token_cache"] for pool in seen["pools"]] == ["off: token_cache_bytes is 0"]


async def test_a_panic_of_the_tokenizer_is_its_callers(tmp_path: Path) -> None:
    """It is no Exception to Python; the connection and the server go on."""
    folder = tmp_path / "model"
    shutil.copytree(OWN_MODEL, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("<r>", rstrip=True), AddedToken("\n\n", lstrip=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = FrontendConfig(http_frontend=0, model_path=str(folder))
    async with openai_serving(FakeEngine(), frontend=config, context=CONTEXT) as served:
        for text in ("", TEXT * 20):  # a plain chat, and a long one
            chat = {"model": "tiny", "messages": [{"role": "user", "content": f"{text}<r> \n\n b"}]}
            status, answer = await served.post("/v1/chat/completions", chat)
            assert status == 400 and "the text cannot be tokenized" in answer["error"]["message"]
            chat["messages"] = [{"role": "user", "content": f"{text}of"}]
            status, answer = await served.post("/v1/chat/completions", chat)
            assert status == 200, answer


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
