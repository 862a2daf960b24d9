"""Answers that a model can be talked into, and that no reader may stumble over."""

import json
from typing import Any

import msgspec
import pytest

from dynamo_router.frontend.openai import ToolChoice
from dynamo_router.frontend.parsers import REASONING_PARSERS, Parsed, new_chat_output
from dynamo_router.frontend.parsers.markers import MOST_BLANKS

TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
MANY = 20_000
CALLS = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"x": %s}}</tool_call>',
    "qwen3_coder": "<tool_call><function=f><parameter=x>%s</parameter></function></tool_call>",
    "glm45": "<tool_call>f<arg_key>x</arg_key><arg_value>%s</arg_value></tool_call>",
    "pythonic": "[f(x=%s)]",
    "mistral": '[TOOL_CALLS]f[ARGS]{"x": %s}',
    "harmony": '<|channel|>commentary to=functions.f<|message|>{"x": %s}<|call|>',
}


def read(answer: str, calls: str) -> Parsed:
    output = new_chat_output(None, calls, ToolChoice(TOOLS), "")
    assert output is not None
    first, last = output.feed(answer), output.flush()
    return Parsed(first.content + last.content, "", (*first.calls, *last.calls))


# A reader that looks for the end again behind each of these needs minutes, or years.
@pytest.mark.parametrize(
    ("calls", "start", "piece", "end"),
    [
        ("qwen3_coder", "<tool_call>", "<function=f>", "</tool_call>"),
        ("qwen3_coder", "<tool_call>", "<function=f", "</tool_call>"),
        ("glm45", "<tool_call>g", "<arg_key>x</arg_key><arg_value>", "</tool_call>"),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>f<|tool_call_argument_begin|>",
            "<|tool_calls_section_end|>",
        ),
        (
            "deepseek_v3",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
            "<｜tool▁calls▁end｜>",
        ),
        ("hermes", "", "<tool_call></tool_call>" * 10, ""),
    ],
)
def test_markers_without_ends_are_text(calls: str, start: str, piece: str, end: str) -> None:
    answer = start + piece * MANY + end
    assert read(answer, calls) == Parsed(answer)


def test_python_that_takes_long_to_read_is_text() -> None:
    calls = ", ".join(["f(x=1)"] * 4000)
    assert len(read(f"[{calls}]", "pythonic").calls) == 4000
    longer = f"[{calls}, {calls}]"
    assert read(longer, "pythonic") == Parsed(longer)


def test_unended_parameters_and_values_are_none() -> None:
    xml = "<function=f>" + "<parameter=x>" * MANY + "</function>"
    assert read(f"<tool_call>{xml}</tool_call>", "qwen3_coder").calls == (("f", "{}"),)
    glm = "f" + "<arg_key>x</arg_key><arg_value>" * MANY
    assert read(f"<tool_call>{glm}</tool_call>", "glm45").calls == (("f", "{}"),)


def test_many_messages_of_harmony_are_read_in_one_piece() -> None:
    for end in ("", "<|end|>"):
        answer = f"<|channel|>final<|message|>a{end}" * (10 * MANY)
        assert read(answer, "harmony").content == "a" * (10 * MANY)


@pytest.mark.parametrize("calls", CALLS)
def test_half_of_a_surrogate_pair_can_be_sent(calls: str) -> None:
    (call,) = read(CALLS[calls] % r'"\ud83d"', calls).calls
    assert msgspec.json.encode(call)
    assert json.loads(call.arguments) == {"x": "\ud83d"}


def test_arguments_and_names_that_are_no_text_make_no_call() -> None:
    for call in (r'{"name": "f", "arguments": "\ud83d"}', r'{"name": "\ud83d", "arguments": {}}'):
        answer = f"<tool_call>{call}</tool_call>"
        assert read(answer, "hermes") == Parsed(answer)


@pytest.mark.parametrize("calls", ["hermes", "mistral", "harmony"])
@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_what_is_a_number_for_python_alone_makes_no_call(calls: str, number: str) -> None:
    found = read(CALLS[calls] % number, calls)
    assert found.calls == () and number in found.content


@pytest.mark.parametrize("calls", ["hermes", "pythonic", "qwen3_coder", "glm45"])
def test_a_number_beyond_all_bounds_makes_no_call(calls: str) -> None:
    answer = CALLS[calls] % "1e999"
    assert read(answer, calls) == Parsed(answer)


@pytest.mark.parametrize("calls", CALLS)
def test_deep_arguments_are_a_call_or_text(calls: str) -> None:
    """Python reads a little deeper than it writes."""
    for depth in (*range(900, 1010), 100_000):
        found = read(CALLS[calls] % ("[" * depth + "]" * depth), calls)
        assert bool(found.calls) != bool(found.content)


@pytest.mark.parametrize("reasoning", REASONING_PARSERS)
@pytest.mark.parametrize("held", [False, True])
def test_white_space_without_end_is_passed_on(reasoning: str, held: bool) -> None:
    """No step looks at all of what came before, as none of it is held back for long."""
    output = new_chat_output(reasoning, None, ToolChoice(), "", held=held)
    assert output is not None
    parsed, most = [output.feed(" ") for _ in range(3 * MOST_BLANKS)], 0
    for piece in parsed:
        most = max(most, len(piece.content + piece.reasoning))
    shown = sum(len(piece.content + piece.reasoning) for piece in parsed)
    assert shown >= 2 * MOST_BLANKS - 64 and most <= MOST_BLANKS + 64
    last = output.flush()
    assert shown + len(last.content + last.reasoning) == 3 * MOST_BLANKS


@pytest.mark.parametrize("reasoning", ["basic", "granite", "gpt_oss"])
def test_reasoning_behind_some_white_space_is_found(reasoning: str) -> None:
    texts = {
        "basic": "<think>why</think>so",
        "granite": "Here is my thought process:why" + "Here is my response:so",
        "gpt_oss": "<|channel|>analysis<|message|>why<|end|>"
        "<|start|>assistant<|channel|>final<|message|>so",
    }
    output = new_chat_output(reasoning, None, ToolChoice(), "")
    assert output is not None
    pieces = [output.feed(piece) for piece in (*" " * 500, *texts[reasoning])] + [output.flush()]
    assert "".join(piece.reasoning for piece in pieces).strip() == "why"
    assert "".join(piece.content for piece in pieces).strip() == "so"
