"""Chat templates as transformers reads them, and what they may not do."""

import re
from collections import UserDict
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dynamo_router.base.errors import ConfigError, InvalidRequestError
from dynamo_router.frontend.processor import ChatTemplate, chat_template

ASK = [{"role": "user", "content": "Hi"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(text: str, messages: object = ASK, **more: object) -> str:
    return ChatTemplate(text, TOKENS).render(messages, **more)  # type: ignore[arg-type]


def test_names_that_templates_know() -> None:
    text = "{{ bos_token }}{% for m in messages %}\n{{ m.role }}:{{ m['content'] }}{% endfor %}"
    assert render(text) == "<s>user:Hi"
    assert render("{% if add_generation_prompt %}A{% endif %}") == "A"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"
    assert render("{{ tools | tojson }}", tools=[{"a": "<é>"}]) == '[{"a": "<é>"}]'
    assert render("{{ thinking }}", variables={"thinking": True}) == "True"
    odd = {"self": 1, "messages": [], "tools": 3, "loop": 4}
    assert render("{{ messages | length }}{{ tools }}", variables=odd) == "1None"
    assert len(render("{{ strftime_now('%Y') }}")) == 4


def test_blocks_are_trimmed_and_loops_may_be_left() -> None:
    text = (
        "{% for i in range(9) %}\n  {% if i == 2 %}\n{% break %}\n"
        "  {% endif %}\n{{ i }}{% endfor %}"
    )
    assert render(text) == "01"


def test_generation_blocks_are_transparent() -> None:
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"


@pytest.mark.parametrize(
    "text, error",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
    ],
)
def test_what_goes_wrong_in_a_template_is_the_requests_error(text: str, error: str) -> None:
    with pytest.raises(InvalidRequestError, match=error) as found:
        render(text)
    assert found.value.field == "messages"


def test_what_it_writes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 100)
    with pytest.raises(InvalidRequestError, match="more than 100 characters"):
        render("{% for i in range(60000) %}{{ i }}{% endfor %}")


def test_a_template_that_does_not_parse() -> None:
    with pytest.raises(ConfigError, match="does not parse"):
        ChatTemplate("{% for %}", {})


PARTS = [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]}]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("{{ messages[0].content }}", "a\nb"),
        ("{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}", "[a][b]"),
        ("{% for part in messages[0]['content'] %}[{{ part.text }}]{% endfor %}", "[a][b]"),
    ],
)
def test_parts_go_to_templates_that_want_them(text: str, expected: str) -> None:
    assert render(text, PARTS) == expected


class _Bag(UserDict[str, Any]):
    """A mapping that is no dict."""


@pytest.mark.parametrize(
    "field",
    ["role", "absent", "items", "clear", "_role", "__class__", "format", "upper", "append", "mro"],
)
def test_fields_are_judged_as_by_the_library(field: str) -> None:
    environments = chat_template._environment(), ImmutableSandboxedEnvironment()
    given = {"role": "r", "items": "i", "_role": "u", "__class__": "c", "format": "f", "mro": "m"}
    values: list[Any] = [given, {}, _Bag(given), ["a"], "text", "text".format, dict, None, 1.5]
    for asked in (f"v.{field}", f"n.{field}", f"v['{field}']", f"v.{field}()"):
        text = f"{{% set n = namespace({field}=v) %}}{{{{ v.{field} is defined, {asked} }}}}"
        templates = [environment.from_string(text) for environment in environments]
        for value in (*values, *values):  # the second time it is known
            found = []
            for template in templates:
                try:
                    said = template.render(v=value)
                except Exception as error:
                    said = f"{type(error)} {error}"
                found.append(re.sub("0x[0-9a-f]+", "", said))
            assert found[0] == found[1], (value, asked)
