"""Conversations put together from pieces are what the template makes of them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.frontend.processor import ChatTemplate
from dynamo_router.frontend.processor.template_pieces import (
    MOST_KEPT,
    MOST_MESSAGES,
    TemplatePieces,
)
from dynamo_router.frontend.processor.template_text import LEFT, RIGHT

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
BY_ROLE = (
    "{{bos_token}}{% for m in messages %}<|{{m['role']}}|>{{m['content']}}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
JOINED = (
    "{%- if messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<|im_start|>' + message.role }}"
    "{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}"
    "{%- for call in message.tool_calls %}{{ call | tojson }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
STRIPPED = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|head|>' + message['role'] + '<|/head|>\\n\\n' + message['content'] | trim"
    " + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|head|>a<|/head|>' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<turn>' + role + '\\n' + message['content'] | trim + '</turn>\\n' }}{% endfor %}"
)
TOUCHING = (
    "{% for m in messages %}{{ m.role }}{{ m.content | trim }}{{ m.role }}"
    "{{ m.content or 'none' }}{{ (m.role ~ m.content) | trim }}{% endfor %}"
)
OFFSET = (
    "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}"
    "{% endif %}"
    "{% for m in rest %}{% if loop.index0 == 0 and first %}[{{ first }}]{% endif %}"
    "{{ m.content if m.role == 'user' else m.content ~ eos_token }}"
    "{{ (' ' ~ m.content ~ ' ') | trim }}"
    "{% endfor %}{{ messages | length }}{{ messages[-1].content }}"
)
NEAR = (
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or (messages[loop.index0 - 1].role != 'tool') %}<tools>{% endif %}"
    "{{ m.content }};"
    "{% if loop.last or (messages[loop.index0 + 1]['role'] != 'tool') %}</tools>{% endif %}"
    "{% else %}{{ m.role }}{{ m.content }}{% endif %}{% endfor %}"
)
BEFORE_THE_FIRST = (
    "{% for m in messages %}{{ messages[loop.index0 - 1].role }}:{{ m.content }}{% endfor %}"
)
REST = (
    "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}"
    "{% endif %}{% for m in rest %}"
    "{% if m.role == 'user' %}{% set seen = m.role %}{% endif %}{{ seen }}{{ first }}"
    "{% if (loop.index0 % 2 == 0) and loop.index0 == 0 %}[{{ first }}]{% endif %}"
    "{% if loop.index % 2 == 0 %}even{% endif %}{% if loop.index > 1 %}, {% endif %}"
    "{% if m.role == 'odd' %}{% continue %}{% endif %}{% if not loop.last %}{{ m.content | trim }}"
    "{% else %}last:{{ m.content }}{{ messages_seen }}{% endif %}"
    "{% endfor %}{{ messages[0].content }}{% if messages %}.{% endif %}"
)
PASS_ON = {
    "by role": BY_ROLE,
    "joined": JOINED,
    "stripped": STRIPPED,
    "turns": TURNS,
    "touching": TOUCHING,
    "rest": REST,
    "near": NEAR,
    "the one before": BEFORE_THE_FIRST,
    "constants": "{% for m in messages %}{% for k in [1, 2] %}{% if loop.index0 % 2 == 1 %}"
    "{{ m.content }}{% endif %}{% endfor %}{{ m.role if loop.first else '' }}{% endfor %}",
    "no name": "{% if messages[0].role == 'odd' %}{% set r = messages %}{% endif %}"
    "{% for m in r %}{{ m.content }}{% endfor %}x",
    "few": "{% for m in messages %}{% if m.role != 'tool' %}{{ m.role }}{% endif %}{% endfor %}",
    "a number": "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}",
    "of three": "{% for m in messages %}{{ loop.index0 % 3 }}{{ m.content }}{% endfor %}",
    "the third": "{% for m in messages %}{% if loop.index0 == 2 %}x{% endif %}{{ m.content }}"
    "{% endfor %}",
    "how many": "{% for m in messages %}{{ loop.length }}{{ m.content }}{% endfor %}",
    "how many, by filter": "{{ messages | length }}{% for m in messages %}{{ m.role }}{% endfor %}",
    "in turn": "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ m.content }}{% endfor %}",
    "kept": "{% set ns = namespace(n=0) %}{% for m in messages %}{{ ns.n }}{{ m.content }}"
    "{% set ns.n = ns.n + 1 %}{% endfor %}",
    "kept before": "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ ns.n }}{{ m.content }}{% endfor %}",
    "two before": "{% for m in messages %}{{ messages[loop.index0 - 2].role }}{{ m.content }}"
    "{% endfor %}",
    "the number before": "{% for m in messages %}{{ loop.index0 - 1 }}{{ m.content }}{% endfor %}",
    "what was before": "{% for m in messages %}{{ messages[loop.index0 - 1].content }}{% endfor %}",
    "before the rest": "{% for m in messages[1:] %}{{ messages[loop.index0 - 1].role }}"
    "{{ m.content }}{% endfor %}",
    "another number": "{% for m in messages %}{% for k in [1, 2, 3] %}"
    "{{ messages[loop.index0 + 1].role }}{% endfor %}{{ m.content }}{% endfor %}",
    "the last": "{% for m in messages %}{{ messages[-1].role }}{{ m.content }}{% endfor %}",
    "the second": "{{ messages[1].role }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "the second by a name": "{% set rest = messages[1:] %}{{ rest[0].role }}"
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "all but two": "{% for m in messages[2:] %}{{ m.content }}{% endfor %}",
    "all but the last": "{% for m in messages[:-1] %}{{ m.content }}{% endfor %}",
    "stops": "{% for m in messages %}{% if m.role == 'odd' %}{% break %}{% endif %}"
    "{{ m.content }}{% endfor %}",
    "filtered": "{% for m in messages if m.role != 'odd' %}{{ loop.first }}{{ m.content }}"
    "{% endfor %}",
    "not always": "{% if messages[0].role == 'odd' %}{% for m in messages %}{{ m.content }}"
    "{% endfor %}{% endif %}",
    "within": "{% for m in messages %}{% for other in messages %}{{ other.role }}{% endfor %}"
    "{% endfor %}",
    "within, chosen": "{% for m in messages %}{{ m.content }}"
    "{% for other in (messages if m.role == 'odd' else []) %}{{ other.role }}{% endfor %}"
    "{% endfor %}",
    "another name": "{% set messages = messages[1:] %}{% for m in messages %}{{ m.content }}"
    "{% endfor %}{{ messages[0].role }}",
    "one name for two": "{% if messages[0].role == 'odd' %}{% set r = messages %}{% else %}"
    "{% set r = [] %}{% endif %}{% for m in r %}{{ m.content }}{% endfor %}",
    "set": OFFSET,
}

LOOK_INSIDE = {
    "compared": "{% for m in messages %}{% if m.content == 'a' %}x{% endif %}{% endfor %}",
    "counted": "{% for m in messages %}{{ m.content | length }}{% endfor %}",
    "upper": "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    "split": "{% for m in messages %}{{ m.content.split('a')[-1] }}{% endfor %}",
    "in": "{% for m in messages %}{% if 'a' in m.content %}x{% endif %}{% endfor %}",
    "sliced": "{{ messages[0]['content'][:1] }}",
    "entries": "{% for m in messages %}{% for k, v in m.items() %}{{ v|upper }}{% endfor %}"
    "{% endfor %}",
    "json": "{{ messages | tojson }}",
    "message json": "{% for m in messages %}{{ m | tojson }}{% endfor %}",
    "by key": "{% set k = 'content' %}{% for m in messages %}{{ m[k] | upper }}{% endfor %}",
    "alias": "{% for m in messages %}{% set c = m.content %}{{ c | upper }}{% endfor %}",
    "of a name": "{% set ns = namespace(c='') %}{% for m in messages %}{% set ns.c = m.content %}"
    "{% endfor %}{{ ns.c | upper }}",
    "before": "{% for m in messages %}{{ loop.previtem.content | upper }}{% endfor %}",
    "before by filter": "{% for m in messages %}{% set p = loop | attr('previtem') %}"
    "{% if p %}{{ p['content'] | upper }}{% endif %}{% endfor %}",
    "changed": "{% for m in messages %}{% if loop.changed(m.content) %}x{% endif %}{% endfor %}",
    "macro": "{% macro w(m) %}{{ m.content | upper }}{% endmacro %}"
    "{% for m in messages %}{{ w(m) }}{% endfor %}",
    "block": "{% set t %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}"
    "{{ t|upper }}",
    "filter block": "{% filter upper %}{{ messages[0].content }}{% endfilter %}",
    "twice": "{% for m in messages %}{{ m.content * 2 }}{% endfor %}",
    "today": "{{ strftime_now('%S') }}{{ messages[0].content }}",
    "random": "{{ [1, 2] | random }}{{ messages[0].content }}",
    "loops": "{% for c in messages[0].content %}-{{ c }}{% endfor %}",
    "two kinds": "{% for m in messages %}{{ m.content }}{% endfor %}{% set m = messages %}",
    "sorted": "{% for m in messages | sort(attribute='content') %}{{ m.content }}{% endfor %}",
}  # fmt: skip

CONTENT = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["", " ", " a ", "\n", "b\n", "<s>", "{{ x }}", LEFT, f"{LEFT}c{RIGHT}", RIGHT, "\xa0d"]
    ),
)
ROLES = st.sampled_from(
    ["user", "assistant", "system", "tool", "odd", "", " ", LEFT, f"a{LEFT}", RIGHT, f"{RIGHT}b"]
)
PLAIN = st.fixed_dictionaries({"role": ROLES, "content": CONTENT})
OTHERS = st.one_of(
    st.fixed_dictionaries({"role": ROLES}),
    st.fixed_dictionaries({"role": ROLES, "content": st.none()}),
    st.fixed_dictionaries({"role": ROLES, "content": CONTENT, "name": st.just("n")}),
    st.builds(lambda role, text: {"role": role, "content": [{"type": "text", "text": text}]},
              ROLES, CONTENT),
)  # fmt: skip
CHATS = st.one_of(
    st.lists(st.one_of(PLAIN, PLAIN, PLAIN, PLAIN, OTHERS), min_size=1, max_size=5),
    st.lists(PLAIN, min_size=3, max_size=9),
    st.lists(PLAIN, min_size=1, max_size=3).map(
        lambda chat: [
            {**chat[nth % len(chat)], "role": "assistant" if nth % 2 else "user"}
            for nth in range(8)
        ]
    ),
)


def text_of(template: ChatTemplate, messages: Any, prompted: bool, *, pieces: bool) -> str:
    """The text, or why there is none."""
    try:
        if pieces:
            return template.render(messages, add_generation_prompt=prompted)
        return template.render_whole(messages, prompted, None, None)
    except InvalidRequestError as error:
        return f"refused: {error}"


TEMPLATES = {name: ChatTemplate(text, TOKENS) for name, text in PASS_ON.items()}


@pytest.mark.parametrize("role", ["a", "", " ", f"a{LEFT}", f"{RIGHT}b", LEFT, "a" * 10_000])
def test_roles_are_written_as_they_are(role: str) -> None:
    template = ChatTemplate(TOUCHING, TOKENS)
    for content in ("q", " q ", ""):
        messages = [{"role": role, "content": content}]
        together = text_of(template, messages, True, pieces=True)
        assert together == text_of(template, messages, True, pieces=False)
    assert template.pieces is not None
    assert (
        max((len(each) for shape, _ in template.pieces._kept for each, _ in shape), default=0) < 100
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(CHATS, st.booleans()), min_size=1, max_size=4))
@pytest.mark.parametrize("name", PASS_ON)
def test_pieces_make_what_the_template_makes(name: str, chats: list[Any]) -> None:
    template = TEMPLATES[name]
    assert template.pieces is not None
    for messages, prompted in chats:
        together = text_of(template, messages, prompted, pieces=True)
        assert together == text_of(template, messages, prompted, pieces=False)


def test_a_long_chat_is_rendered_and_takes_no_ones_place() -> None:
    template = ChatTemplate(JOINED, TOKENS)
    pieces = template.pieces
    assert pieces is not None
    roles = ["system", *["user", "assistant"] * 400]
    chat = [{"role": role, "content": f"{nth}"} for nth, role in enumerate(roles)]
    for count in (5, MOST_MESSAGES, MOST_MESSAGES + 1, 801):
        text = template.render(chat[:count])
        assert text == template.render_whole(chat[:count], True, None, None)
    assert [len(shape) for shape, _ in pieces._kept] == [5, MOST_MESSAGES]


@pytest.mark.parametrize("text", LOOK_INSIDE.values(), ids=LOOK_INSIDE)
def test_a_template_that_looks_into_contents_has_no_pieces(text: str) -> None:
    template = ChatTemplate(text, TOKENS)
    assert template.pieces is None
    messages = [{"role": "user", "content": each} for each in ("a b", "c")]
    assert text_of(template, messages, True, pieces=True) == text_of(
        template, messages, True, pieces=False
    ) or "strftime_now" in text or "random" in text  # fmt: skip


def test_contents_that_touch_keep_their_own_white_space() -> None:
    """Of one that is stripped, and one behind it that is not."""
    chat = [{"role": "user", "content": content} for content in (" a ", " b ")]
    text = "{% for m in messages %}{{ m.content | trim }}{{ m.content }}{% endfor %}"
    assert ChatTemplate(text, {}).render(chat, add_generation_prompt=False) == "a a b b "


def test_a_template_or_token_with_the_mark_has_no_pieces() -> None:
    for edge in LEFT, RIGHT:
        assert ChatTemplate(BY_ROLE + edge, TOKENS).pieces is None
        assert ChatTemplate(BY_ROLE, {"bos_token": edge}).pieces is None
    assert ChatTemplate(BY_ROLE, {}).pieces is not None


def test_the_template_is_rendered_once_for_a_shape_and_shapes_are_bounded() -> None:
    rendered: list[Any] = []

    def render(messages: Any, prompted: bool) -> str:
        rendered.append(messages)
        return "".join(f"{each['role']}:{each['content']};" for each in messages)

    pieces = TemplatePieces(render)
    for text in ("a", "b", "c"):
        chat = [{"role": "user", "content": text}, {"role": "x", "content": text}]
        assert pieces.put_together(chat, True) == f"user:{text};x:{text};"
    assert len(rendered) == 1
    for number in range(MOST_KEPT):
        two = [{"role": f"r{number}", "content": "a"}, {"role": "b", "content": "c"}]
        assert pieces.put_together(two, True) == f"r{number}:a;b:c;"
    assert sum(len(shape) for shape, _ in pieces._kept) <= MOST_KEPT
    long = [{"role": "r" * 99, "content": "a"}]
    assert pieces.put_together(long, True) == "r" * 99 + ":a;"
    assert not any(len(role) > 64 for shape, _ in pieces._kept for role, _ in shape)
    many = [{"role": "user", "content": "a"}] * (MOST_MESSAGES + 1)
    assert pieces.put_together(many, True) is None
