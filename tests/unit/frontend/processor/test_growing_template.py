"""What a template writes behind a point that was kept is what it writes of the whole chat there."""

import gc
import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Template
from support.chats.templates import CHANNELS, DATED, GROUPED, LAST_QUESTION, THINKING

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.frontend.processor import ChatTemplate, Grown, Point, chat_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
GOES_ON = {
    "grouped": GROUPED,
    "thinking": THINKING,
    "dated": DATED,
    "channels": CHANNELS,
    "within a condition": "{% if messages %}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% endif %}x",
    "a name for all": "{% set all = messages %}{% for m in all %}{{ m.role }}{{ m.content }};"
    "{% endfor %}",
    "counted": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ ns.n }}:{{ m.content }}{{ loop.cycle('a', 'b') }}{% endfor %}{{ ns.n }}",
    "the one before": "{% for m in messages %}{{ loop.previtem.role if not loop.first }}>"
    "{{ m.role }}{{ m.content }}{% endfor %}",
    "any before": "{% for m in messages %}{% if messages[0].content == m.content %}again{% endif %}"
    "{{ messages[loop.index0 - 2].role if loop.index0 > 1 }}{{ m.content }}{% endfor %}",
    "left out": "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
    "{{ m.content }}{% endfor %}",
}
"""They go on behind nearly all messages of an agent's chat."""
ODD = {
    "the next one": "{% for m in messages %}{{ m.content }}{{ loop.nextitem.role }}{% endfor %}",
    "how many": "{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}",
    "how many before": "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "how many, kept": "{% set n = messages | length %}{% for m in messages %}{{ n }}{{ m.content }}"
    "{% endfor %}",
    "the last": "{% set last = messages[-1] %}{% for m in messages %}{{ m.content }}"
    "{% if m == last %}!{% endif %}{% endfor %}",
    "the last ones": "{% for m in messages %}{{ messages[-2:] | map(attribute='role') | join }}"
    "{{ m.content }}{% endfor %}",
    "some": "{% for m in messages %}{{ messages | selectattr('role', 'equalto', 'user') | list"
    " | length }}{{ m.content }}{% endfor %}",
    "stops": "{% for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}{{ m.content }}"
    "{% endfor %}",
    "a list": "{% for m in messages %}{{ messages | tojson }}{% endfor %}",
    "an empty one": "{% for m in messages %}{{ messages[loop.index:] == [] }}{% endfor %}",
    "kept messages": "{% set ns = namespace(m=none) %}{% for m in messages %}{{ ns.m }}"
    "{% set ns.m = m %}{% endfor %}",
    "a long text": "{% set ns = namespace(t='') %}{% for m in messages %}{{ ns.t }}"
    "{% set ns.t = ns.t ~ m.content * 9 %}{% endfor %}",
    "the date": "{% for m in messages %}{{ strftime_now('%d') }}{{ m.content }}{% endfor %}",
    "backwards": "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}",
    "twice": "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% for m in messages %}{{ m.role }}{% endfor %}",
    "a cycler": "{% set c = cycler('a', 'b') %}{% for m in messages %}{{ c.next() }}{{ m.content }}"
    "{% endfor %}",
    "compared, and written": LAST_QUESTION + "{% for m in messages %}{{ ns.last }}"
    "{{ loop.index0 <= ns.last }}{{ m.content }}{% endfor %}",
    "compared the other way": LAST_QUESTION + "{% for m in messages %}"
    "{{ ns.last >= loop.index }}{{ ns.last < loop.index0 }}{{ m.content }}{% endfor %}",
    "only numbers": LAST_QUESTION + "{% for m in messages %}{{ loop.index0 < ns.last }}"
    "{{ loop.index >= ns.last }}{{ m.content }}{% endfor %}",
    "looks without a sign": "{% set ns = namespace(last=0) %}{% for m in messages[::-1] %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ loop.index0 > ns.last }}{{ m.content }}{% endfor %}",
}
UNSEEN = {
    "a macro of another name": "{% set ns = namespace(n=0) %}{% macro shown(m) %}"
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}{% endmacro %}{% set other = shown %}"
    "{% for m in messages %}{{ other(m) }}{% endfor %}",
    "a macro of another name, with what it reads": "{% macro shown(m) %}{{ count }}{{ m.content }}"
    "{% endmacro %}{% set count = messages | length %}{% set other = shown %}"
    "{% for m in messages %}{{ other(m) }}{% endfor %}",
    "set behind": "{% for m in messages %}{{ v }}{{ m.content }}{% endfor %}{% set v = 5 %}",
    "set behind a macro": "{% macro shown() %}{{ v }}{% endmacro %}{{ shown() }}"
    "{% for m in messages %}{{ m.content }}{{ shown() }}{% endfor %}{% set v = 5 %}",
    "set before and behind": "{% set v = 3 %}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% for a in [1] %}{{ v }}{% endfor %}{% set v = 4 %}{{ v }}",
    "set to what is not there": "{% set v = bos_token.x %}{% for m in messages %}{{ m.content }}"
    "{% endfor %}{{ v }}",
    "a macro's name that is set": "{% macro shown() %}{% endmacro %}{% set shown = 'x' %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ shown }}",
    "looks with another namespace each time": "{% set out = namespace(at=-1) %}"
    "{% for m in messages[::-1] %}{% set ns = namespace(flag=true) %}{% if ns.flag and m.role == "
    "'tool' %}{% set ns.flag = false %}{% set out.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ out.at }}{{ m.content }}{% endfor %}",
    "looks on by another name": "{% set ns = namespace(flag=true, at=-1) %}{% set out = ns %}"
    "{% for m in messages[::-1] %}{% if ns.flag and m.role == 'tool' %}{% set ns.flag = false %}"
    "{% set out.flag = true %}{% set out.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ out.at }}{{ m.content }}{% endfor %}",
    "looks, and may fail": "{% set ns = namespace(flag=true, at=-1) %}{% for m in messages[::-1] %}"
    "{% set text = m.missing.missing %}{% if ns.flag and m.role == 'tool' %}"
    "{% set ns.flag = false %}{% set ns.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ ns.at }}{{ m.content }}{% endfor %}",
    "looks with a flag that is not there": "{% for m in messages[::-1] %}{% if ns.flag and m.role "
    "== 'none' %}{% set ns.flag = false %}{% endif %}{% endfor %}{% set ns = 1 %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "looks, and counts nothing": "{% set ns = namespace(flag=true) %}{% for m in messages[::-1] %}"
    "{% if ns.flag and m.role == 'tool' %}{% set ns.flag = false %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ ns.flag }}{{ m.content }}{% endfor %}",
    "a later one, noted elsewhere": "{% set out = namespace(found=false) %}{% for m in messages %}"
    "{% set ns = namespace(found=false) %}{% for other in messages[loop.index:] %}"
    "{% set ns = out %}{% if other.role == 'tool' %}{% set ns.found = true %}{% endif %}"
    "{% endfor %}{{ m.content }}{{ ns.found }}{{ out.found }}{% endfor %}",
    "a list's method": "{% for m in messages %}{{ (messages | attr('index')) is defined }}"
    "{{ m.content }}{% endfor %}",
    "a name of ours for the date": "{% set strftime_now = 'x' %}{{ strftime_now }}"
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ strftime_now }}",
}
"""What hides from a look at the syntax tree what the loop reads, or changes."""
TEMPLATES = {
    name: ChatTemplate(text, TOKENS) for name, text in {**GOES_ON, **ODD, **UNSEEN}.items()
}

CONTENT = st.one_of(
    st.sampled_from(["", " ", "a", "<result>", "<think>x</think>\nb", "\x1e", "é", "a" * 400]),
    st.none(),
    st.builds(lambda text: [{"type": "text", "text": text}], st.sampled_from(["a", ""])),
)
CALL = st.builds(
    lambda name, arguments: {"type": "function", "function": dict(name=name, arguments=arguments)},
    st.sampled_from(["f", "g"]),
    st.sampled_from([{}, {"a": "é"}, [1]]),
)
MESSAGE = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "tool", "system"]), "content": CONTENT}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant")},
        optional={
            "content": CONTENT,
            "tool_calls": st.lists(CALL, min_size=1, max_size=2),
            "reasoning_content": st.just("t"),
            "cache_control": st.just({"type": "ephemeral"}),
        },
    ),
)
CHATS = st.lists(MESSAGE, min_size=1, max_size=6)
STEP = st.one_of(
    st.tuples(st.just("said"), CHATS),
    st.tuples(st.just("said"), CHATS),
    st.tuples(st.just("cut"), st.integers(1, 9)),
    st.tuples(st.just("changed"), st.tuples(st.integers(0, 9), MESSAGE)),
    st.tuples(st.just("another day"), st.integers(1, 28)),
)
GIVEN = st.fixed_dictionaries(
    {
        "tools": st.sampled_from([None, [], [{"function": {"name": "f"}}]]),
        "variables": st.sampled_from([{}, {"date": "now"}, {"last": 1}]),
        "add_generation_prompt": st.booleans(),
    }
)


class Chat:
    """What is kept of a conversation from turn to turn."""

    def __init__(self, template: ChatTemplate, given: dict[str, Any]) -> None:
        self.template, self.given = template, given
        self.kept: list[tuple[list[str], str, Point]] = []
        self.read: set[int] = set()

    def check(self, messages: Sequence[Mapping[str, Any]]) -> Grown | None:
        """Both texts are the same, if there is one."""
        keys, self.read = list(map(json.dumps, messages)), set[int]()
        known = [each for each in self.kept if keys[: len(each[0])] == each[0]]
        known.sort(key=lambda each: -each[2].messages)

        def read(number: int) -> Mapping[str, Any]:
            self.read.add(number)
            return dict(messages[number])

        whole: str | None
        try:
            whole = self.template.render_whole(
                messages,
                self.given["add_generation_prompt"],
                self.given["tools"],
                self.given["variables"],
            )
        except InvalidRequestError:
            whole = None
        points = [point for _, _, point in known]
        grown = self.template.grow(len(messages), read, points, **self.given)
        if grown is None:
            return None
        before = "" if grown.used is None else known[grown.used][1]
        assert before + "".join(grown.text) == whole
        if grown.point is not None:
            stays = before + "".join(grown.text[: grown.stays])
            self.kept.append((keys, stays, grown.point))
        return grown


def compiled(template: ChatTemplate) -> Iterator[Template]:
    yield template._template
    if (growing := template.growing) is not None:
        yield growing._template
        if growing._rest is not None:
            yield growing._rest


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(first=CHATS, given=GIVEN, steps=st.lists(STEP, max_size=5))
def test_it_goes_on_as_the_whole_does(
    name: str, first: list[Any], given: dict[str, Any], steps: list[Any]
) -> None:
    chat, messages, day = Chat(TEMPLATES[name], given), list(first), 1
    with pytest.MonkeyPatch.context() as patched:
        for kind, what in [("said", []), *steps]:
            if kind == "said":
                messages = [*messages, *what]
            elif kind == "cut":
                messages = messages[: what % len(messages) + 1]
            elif kind == "changed":
                messages[what[0] % len(messages)] = what[1]
            else:
                day = what
            for each in compiled(chat.template):
                patched.setitem(each.globals, "strftime_now", lambda form: f"{form}{day}")  # noqa: B023
            chat.check(messages)


def agents_chat(turns: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "Mend it."},
    ]
    for turn in range(turns):
        call = {"function": {"name": "f", "arguments": {"n": turn}}}
        found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        found.append({"role": "tool", "content": f"result {turn}"})
    return found


@pytest.mark.parametrize("name", GOES_ON)
@pytest.mark.parametrize("tools", [None, [{"function": {"name": "f"}}]])
def test_a_turn_of_an_agent_reads_what_is_new(name: str, tools: Any) -> None:
    given = {"tools": tools, "variables": {}, "add_generation_prompt": True}
    chat, messages = Chat(TEMPLATES[name], given), agents_chat(40)
    chat.check(messages[:2])
    chat.check(messages[:60])
    for count in range(62, len(messages) + 1, 2):
        grown = chat.check(messages[:count])
        assert grown is not None and grown.used == 0 and grown.point is not None
        assert len(chat.read) <= 6  # the first, the last question, one before, one read again
        assert grown.point.messages >= count - 1
    asked = [*messages, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "q"}]
    grown = chat.check(asked)  # which may take away what was thought since the last one
    assert grown is not None and grown.used is not None
    answered = [*asked, {"role": "assistant", "content": "a"}, {"role": "user", "content": "q"}]
    grown = chat.check(answered)
    assert grown is not None and grown.used is not None and len(chat.read) <= 6


@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.parametrize("variables", [{}, {"v": 7}])
def test_what_is_not_seen_in_the_tree_is_made_anew(name: str, variables: dict[str, Any]) -> None:
    given = {"tools": None, "variables": variables, "add_generation_prompt": True}
    chat, messages = Chat(TEMPLATES[name], given), agents_chat(4)
    for count in (3, 4, 6, 7, len(messages)):
        chat.check(messages[:count])


def test_what_is_kept_has_no_message_behind_it() -> None:
    class Seen(dict[str, Any]):
        pass

    text = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{{ m.content }}{% set ns.t = m.t %}"
        "{% endfor %}{{ ns.t }}"
    )
    given: Any = {"tools": None, "variables": {}, "add_generation_prompt": True}
    messages = [Seen(message) for message in agents_chat(3)]
    last = weakref.ref(messages[-1])
    grown = ChatTemplate(text, TOKENS).grow(8, messages.__getitem__, [], **given)
    assert grown is not None and grown.point is not None and grown.point.messages == 8
    messages.clear()
    gc.collect()
    assert last() is None


def test_another_day_is_another_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    template, messages = TEMPLATES["dated"], agents_chat(5)
    given = {"tools": None, "variables": {}, "add_generation_prompt": True}
    chat = Chat(template, given)
    now = ["1"]
    for each in compiled(template):
        monkeypatch.setitem(each.globals, "strftime_now", lambda form: now[0])
    chat.check(messages[:4])
    grown = chat.check(messages[:6])
    assert grown is not None and grown.used == 0
    now[0] = "2"
    grown = chat.check(messages[:8])
    assert grown is not None and grown.used is None
    grown = chat.check(messages)
    assert grown is not None and grown.used == 0


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content }}",
        "{% for m in messages %}{{ loop }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ loop.changed(m.role) }}{% endfor %}",
        "{% for m in messages recursive %}{{ m.content }}{% endfor %}",
        "{% for m in messages if m.content %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% else %}none{% endfor %}",
        "{% for m in messages %}{{ [1, 2] | random }}{% endfor %}",
        "{% macro w() %}{% for m in messages %}{{ m.content }}{% endfor %}{% endmacro %}{{ w() }}",
        "{% if a %}{% macro w() %}{% endmacro %}{% else %}{% macro w() %}{% endmacro %}{% endif %}"
        "{% for m in messages %}{{ w() }}{% endfor %}",
        "{% for m in messages %}{% macro w() %}{{ m.content }}{% endmacro %}{{ w() }}{% endfor %}",
        "{% for m in messages %}{{ growing_rows }}{% endfor %}",
        "{% block b %}{% for m in messages %}{{ m.content }}{% endfor %}{% endblock %}",
    ],
)
def test_a_template_without_such_a_loop_does_not_grow(text: str) -> None:
    assert ChatTemplate(text, TOKENS).growing is None


def test_what_it_writes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = {"tools": None, "variables": None, "add_generation_prompt": True}
    template, messages = TEMPLATES["a name for all"], agents_chat(3)
    assert template.grow(8, messages.__getitem__, [], **given) is not None
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 50)
    assert template.grow(8, messages.__getitem__, [], **given) is None
