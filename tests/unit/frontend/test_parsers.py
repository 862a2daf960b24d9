"""Reasoning and calls of tools in an answer, however it is cut into pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.frontend.openai import ToolChoice
from dynamo_router.frontend.parsers import (
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    Parsed,
    new_chat_output,
)

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
CALL = '{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}'
ARGUMENTS = '{"city": "Ulm", "days": 3}'
DEEPSEEK_CALL = f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
GLM = (
    "<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
)
XML = """
<function=weather>
<parameter=city>
12
</parameter>
<parameter=days>
3
</parameter>
</function>
"""


def read(
    pieces: list[str],
    reasoning: str | None = None,
    calls: str | None = None,
    choice: ToolChoice | None = None,
    tail: str = "",
    held: bool = False,
) -> Parsed:
    choice = choice or ToolChoice(TOOLS)
    output = new_chat_output(reasoning, calls, choice, tail, held=held)
    assert output is not None
    parsed = [*map(output.feed, pieces), output.flush()]
    return Parsed(
        "".join(each.content for each in parsed),
        "".join(each.reasoning for each in parsed),
        tuple(call for each in parsed for call in each.calls),
    )


ANSWERS = [
    ("qwen3", None, "<think>why\n</think>\n\nbecause", ("because", "why\n", [])),
    ("qwen3", None, "\n<think></think>ok", ("ok", "", [])),
    ("qwen3", None, "no thought <think>x</think>", ("no thought <think>x</think>", "", [])),
    ("qwen3", None, "<think>cut off", ("", "cut off", [])),
    ("qwen3", None, "<thin", ("<thin", "", [])),
    ("deepseek_r1", None, "why</think>so", ("so", "why", [])),
    ("deepseek_r1", None, "<think>why</think>so", ("so", "why", [])),
    ("deepseek_r1", None, "<b>why</think>so", ("so", "<b>why", [])),
    ("granite", None, "Here is my thought process:x Here is my response:y", ("y", "x ", [])),
    (None, "hermes", f"<tool_call>{CALL}</tool_call>", ("", "", ["weather"])),
    (None, "hermes", f"Look: <tool_call>\n{CALL}\n</tool_call>\n", ("Look: ", "", ["weather"])),
    (
        None,
        "hermes",
        f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>",
        ("", "", ["weather", "weather"]),
    ),
    (None, "hermes", "<tool_call>no</tool_call> b", ("<tool_call>no</tool_call> b", "", [])),
    (None, "hermes", "a <tool_call>{", ("a <tool_call>{", "", [])),
    (None, "hermes", f"<tool_call>{CALL}", ("", "", ["weather"])),
    (None, "hermes", "1 < 2 <tool", ("1 < 2 <tool", "", [])),
    (None, "qwen3_coder", f"<tool_call>{XML}</tool_call>", ("", "", ["weather"])),
    (None, "mistral", f"[TOOL_CALLS][{CALL}, {CALL}]", ("", "", ["weather", "weather"])),
    (None, "mistral", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}", ("", "", ["weather"])),
    (
        None,
        "mistral",
        f"So: [TOOL_CALLS]weather{ARGUMENTS}[TOOL_CALLS]weather[CALL_ID]a1[ARGS]{ARGUMENTS}",
        ("So: ", "", ["weather", "weather"]),
    ),
    (None, "mistral", "[TOOL_CALLS]two words{}", ("[TOOL_CALLS]two words{}", "", [])),
    (None, "pythonic", "[weather(city='Ulm', days=3)]", ("", "", ["weather"])),
    (
        None,
        "pythonic",
        "<|python_start|>[weather(city='Ulm', days=3), weather(city='Ulm', days=3)]<|python_end|>",
        ("", "", ["weather", "weather"]),
    ),
    (None, "pythonic", "[1, 2] is a list", ("[1, 2] is a list", "", [])),
    (None, "pythonic", "[weather(days())]", ("[weather(days())]", "", [])),
    (None, "pythonic", r"[weather(city=f'\d{x}')]", (r"[weather(city=f'\d{x}')]", "", [])),
    (None, "phi4", f"functools[{CALL}]", ("", "", ["weather"])),
    (None, "jamba", f"<tool_calls>[{CALL}, {CALL}]</tool_calls>", ("", "", ["weather"] * 2)),
    (None, "nemotron_deci", f"<TOOLCALL>[{CALL}]</TOOLCALL>", ("", "", ["weather"])),
    (
        "deepseek_r1",
        "deepseek_v3",
        "why</think>So.<｜tool▁calls▁begin｜>"
        + f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{ARGUMENTS}\n```"
        + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("So.", "why", ["weather"]),
    ),
    (
        None,
        "deepseek_v3_1",
        f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL}{DEEPSEEK_CALL}<｜tool▁calls▁end｜>",
        ("", "", ["weather", "weather"]),
    ),
    (
        None,
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
        ("", "", ["weather"]),
    ),
    (
        "glm45",
        "glm45",
        f"<think>why</think>\n<tool_call>weather\n{GLM}</tool_call>",
        ("", "why", ["weather"]),
    ),
    (None, "glm47", f"<tool_call>weather{GLM}</tool_call>", ("", "", ["weather"])),
    (None, "glm45", "<tool_call>other</tool_call>", ("<tool_call>other</tool_call>", "", [])),
    (None, "llama3_json", CALL.replace("arguments", "parameters"), ("", "", ["weather"])),
    (None, "llama3_json", f"<|python_tag|>{CALL}; {CALL}", ("", "", ["weather", "weather"])),
    (None, "llama3_json", '{"a": 1} is JSON', ('{"a": 1} is JSON', "", [])),
    (None, "llama3_json", "plain { text }", ("plain { text }", "", [])),
    (
        "qwen3",
        "hermes",
        f"<think>a <tool_call> would do</think>\n<tool_call>{CALL}</tool_call>",
        ("", "a <tool_call> would do", ["weather"]),
    ),
]


@pytest.mark.parametrize("reasoning, calls, answer, wanted", ANSWERS)
def test_answers(reasoning: Any, calls: Any, answer: str, wanted: Any) -> None:
    for pieces in ([answer], list(answer)):
        found = read(pieces, reasoning, calls)
        names = [call.name for call in found.calls]
        assert (found.content, found.reasoning, names) == wanted, pieces
        for call in found.calls:
            arguments = json.loads(call.arguments)
            # A string stays one, whatever it looks like; the rest is JSON.
            assert arguments in ({"city": "Ulm", "days": 3}, {"city": "12", "days": 3})


PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "<", "\n", "text", "[", "{"]
MARKS = [
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "to=functions.x",
]


@given(
    st.lists(st.sampled_from([*PIECES, *MARKS]), max_size=8),
    st.sampled_from([None, *REASONING_PARSERS]),
    st.sampled_from([None, *TOOL_CALL_PARSERS]),
    st.booleans(),
    st.data(),
)
def test_it_does_not_matter_how_an_answer_is_cut(
    parts: list[str],
    reasoning: str | None,
    calls: str | None,
    held: bool,
    data: st.DataObject,
) -> None:
    if reasoning is None and calls is None:
        return
    answer = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=6).map(sorted))
    edges = [0, *cuts, len(answer)]
    pieces = [answer[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    cut = read(pieces, reasoning, calls, held=held)
    assert cut == read([answer], reasoning, calls, held=held)


@pytest.mark.parametrize(
    ("answer", "reasoning"),
    [
        ("it writes <think> here</think>so", "it writes <think> here"),
        ("\n<think>why</think>so", "why"),
        ("<think><think>why</think>so", "<think>why"),
        (" <b> why</think>so", " <b> why"),
    ],
)
def test_one_opening_marker_alone_is_dropped_and_only_at_the_beginning(
    answer: str, reasoning: str
) -> None:
    for at in range(len(answer)):
        found = read([answer[:at], answer[at:]], "deepseek_r1")
        assert found == Parsed("so", reasoning), at
    assert read(list(answer), "deepseek_r1") == Parsed("so", reasoning)


def test_a_prompt_that_ends_with_the_marker_begins_inside() -> None:
    assert read(["why</think>so"], "qwen3", tail="assistant\n<think>\n").reasoning == "why"
    assert read(["why</think>so"], "qwen3", tail="<think></think>\n").reasoning == ""


def test_an_answer_held_to_json_may_begin_with_it() -> None:
    """An engine that holds its answer to a schema may do so from the first token on."""
    assert read(['{"a"', ": 1}"], "deepseek_r1", held=True) == Parsed('{"a": 1}')
    assert read([" ", "{}"], "qwen3", held=True, tail="<think>") == Parsed(" {}")
    assert read(["why</think>{}"], "deepseek_r1", held=True) == Parsed("{}", "why")
    assert read(["[THINK]why[/THINK]{}"], "mistral", held=True) == Parsed("{}", "why")
    forced = ToolChoice(TOOLS, True, "weather")
    assert read(["{}"], "deepseek_r1", choice=forced).calls == (("weather", "{}"),)


def test_only_what_could_be_a_marker_is_held_back() -> None:
    output = new_chat_output("qwen3", "hermes", ToolChoice(TOOLS), "")
    assert output is not None
    assert output.feed("so ").content == "so "
    assert output.feed("it <").content == "it "
    assert output.feed("b> is").content == "<b> is"


def test_a_forced_answer_is_calls_alone() -> None:
    one = ToolChoice(TOOLS, True, "weather")
    assert read(['{"city": ', '"Ulm"}'], choice=one).calls == (("weather", '{"city": "Ulm"}'),)
    cut = read(['{"city": '], choice=one)
    assert cut.calls == () and cut.content == '{"city": '
    some = ToolChoice(TOOLS, True)
    found = read(['[{"name": "weather", "parameters": {"days": 1}}]'], choice=some)
    assert found.calls == (("weather", '{"days": 1}'),) and found.content == ""


def test_nothing_is_parsed_where_nothing_can_be() -> None:
    assert new_chat_output(None, "hermes", ToolChoice(), "") is None
    assert new_chat_output(None, None, ToolChoice(TOOLS), "") is None
