"""Turns that are written as a whole, too: what counts as a fault, and what does not."""

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dynamo_router.base.errors import CapacityError
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.engine_requests import Given
from dynamo_router.frontend.long_chats import known_beginnings
from dynamo_router.frontend.long_chats.chat_items import CHAT_ITEMS, ItemsApart
from dynamo_router.frontend.long_chats.known_beginnings import KnownBeginnings, TemplateChecks
from dynamo_router.frontend.processor import NO_TENANT, ModelText, PieceCache
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.server.dispatch import RequestReader, cut_items

LOOP = "{% for m in messages %}<|start|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}"
TEMPLATES = {
    "plain": LOOP,
    "dated": "{{ strftime_now('%A') }}" + LOOP,
    "dated behind": LOOP + "{{ strftime_now('%A') }}",
    "timed": LOOP + "{{ strftime_now('%f') }}",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_beginnings, "LEAST_NEW_CHARS", 4)


@pytest.fixture
def off_loop() -> Iterator[OffLoop]:
    made = OffLoop()
    yield made
    made.close()


class Model:
    """One with a template, and a conversation with it."""

    def __init__(self, folder: Path, template: str, off_loop: OffLoop) -> None:
        shutil.copytree(OWN_MODEL, folder)
        (folder / "chat_template.jinja").write_text(template)
        self.text = ModelText(folder, off_loop, PieceCache(1 << 20))
        self.beginnings = KnownBeginnings(self.text, RequestReader(4, off_loop=off_loop))
        self._asked: list[bytes] = []

    async def say(self, given: Given | None = None) -> Any:
        """One more question; its prompt."""
        self._asked.append(b'{"role": "user", "content": "%b"}' % (b"the of and " * 40))
        body = b'{"model": "m", "messages": [%b]}' % b", ".join(self._asked)
        found = cut_items(body, b"messages", 64, 1 << 20, False)
        assert found is not None
        apart = ItemsApart(CHAT_ITEMS, *found)
        return await self.beginnings.prompt(apart, NO_TENANT, given or Given())


@pytest.mark.parametrize(
    ("name", "counted"), [("plain", "same"), ("dated", "same"), ("timed", "unsure")]
)
async def test_a_template_that_goes_on_as_it_should(
    tmp_path: Path, off_loop: OffLoop, monkeypatch: pytest.MonkeyPatch, name: str, counted: str
) -> None:
    monkeypatch.setattr(known_beginnings, "CHECKED_OF", 2)
    model = Model(tmp_path / "m", TEMPLATES[name], off_loop)
    for _ in range(6):
        assert await model.say() is not None
    assert model.text.long_chats == "on"
    assert {key: n for key, n in model.text.pieces.checks.items() if n} == {counted: 3}


@pytest.mark.parametrize(
    "drawn",
    [
        "{{ range(3) | random }}",
        "{{ [[1, 2, 3]] | map('random') | first }}",
        "{% set name = 'random' %}{{ [[1, 2, 3]] | map(name) | first }}",
        "{{ lipsum(n=1) }}",
        "{% filter random %}123{% endfilter %}",
    ],
)
async def test_a_template_that_draws_at_random_is_known_when_it_is_read(
    tmp_path: Path, off_loop: OffLoop, drawn: str
) -> None:
    """Its turns are not taken for faults where two draws are the same by chance."""
    model = Model(tmp_path / "m", LOOP + drawn, off_loop)
    assert model.text.long_chats == "off: the chat template draws at random"
    assert await model.say() is None and sum(model.text.pieces.checks.values()) == 0


@pytest.mark.parametrize("name", ["dated", "dated behind"])
async def test_a_day_that_begins_meanwhile_is_no_fault(
    tmp_path: Path, off_loop: OffLoop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(known_beginnings, "CHECKED_OF", 2)
    for midnight in range(1, 9):
        model = Model(tmp_path / f"{midnight}", TEMPLATES[name], off_loop)
        template = model.text.template
        assert template is not None and template.growing is not None
        asked = itertools.count()

        def day(form: str, asked: Any = asked, midnight: int = midnight) -> str:
            return "Monday" if next(asked) < midnight else "Tuesday"

        growing = template.growing
        for each in (template._template, growing._template, growing._rest):
            if each is not None:
                monkeypatch.setitem(each.globals, "strftime_now", day)
        for _ in range(4):
            assert await model.say() is not None
        assert model.text.long_chats == "on" and model.text.pieces.checks["differs"] == 0


@pytest.mark.parametrize("where", ["before", "behind", "kept"])
async def test_a_fault_turns_it_off_and_is_asked_once(
    tmp_path: Path, off_loop: OffLoop, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Wherever in the text it is."""
    model = Model(tmp_path / "m", TEMPLATES["plain"], off_loop)
    template = model.text.template
    assert template is not None and template.growing is not None
    grow, turns = template.growing.render, 0

    def wrong(*given: Any) -> Any:
        made = grow(*given)
        assert made is not None
        text = {
            "before": lambda: ["of", *made.text],
            "behind": lambda: [*made.text, "of"],
            "kept": lambda: [*made.text[:1], "of", *made.text[2:]] if turns == 1 else made.text,
        }[where]()
        first = made.used is None and where != "kept"
        return made if first else made._replace(text=text)

    monkeypatch.setattr(template.growing, "render", wrong)
    with capture_logs() as logs:
        for turns in (1, 2, 3, 4):
            found = await model.say()
            assert (found is not None) is (turns < 2)
    assert model.text.long_chats == known_beginnings.FAULT
    assert model.text.pieces.checks == {"same": 0, "differs": 1, "unsure": 0}
    assert [each["log_level"] for each in logs] == ["error"]


def test_one_of_many_turns_is_checked(tmp_path: Path, off_loop: OffLoop) -> None:
    checks = TemplateChecks(Model(tmp_path / "m", LOOP, off_loop).text)
    due = [number for number in range(450) if checks.is_due()]
    assert due == [0, 200, 400]


@pytest.mark.parametrize("error", [CapacityError("full"), asyncio.CancelledError()])
async def test_a_check_that_comes_to_no_end_is_made_up_for(
    tmp_path: Path, off_loop: OffLoop, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """For want of room, of which no turn fails, or as its client left."""
    model = Model(tmp_path / "m", TEMPLATES["plain"], off_loop)
    assert await model.say() is not None

    async def refuse(*given: Any, **more: Any) -> Any:
        raise error

    with monkeypatch.context() as full:
        full.setattr(off_loop, "run", refuse)
        if isinstance(error, CapacityError):
            assert await model.say() is not None
        else:
            with pytest.raises(asyncio.CancelledError):
                await model.say()
    assert sum(model.text.pieces.checks.values()) == 0
    for _ in range(3):
        assert await model.say() is not None
    assert model.text.pieces.checks["same"] == 1


async def test_what_is_nested_too_deep_to_be_written_is_read_as_a_whole(
    tmp_path: Path, off_loop: OffLoop
) -> None:
    model = Model(tmp_path / "m", TEMPLATES["plain"], off_loop)
    deep: Any = 1
    for _ in range(100_000):
        deep = {"a": deep}
    assert await model.say() is not None
    assert await model.say(Given(variables={"a": 1})) is not None
    assert await model.say(Given(variables={"a": deep})) is None
