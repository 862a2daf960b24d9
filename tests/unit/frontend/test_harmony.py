"""gpt-oss's answers, held against OpenAI's own reader of them."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.frontend.openai import ToolChoice
from dynamo_router.frontend.parsers import ChatOutput, Parsed, ToolCall, new_chat_output

TOOLS: Any = [{"type": "function", "function": {"name": "weather"}}]
CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.weather "
    '<|constrain|>json<|message|>{"city": "Ulm"}<|call|>'
)
ULM = ToolCall("weather", '{"city": "Ulm"}')
ANSWERS = [
    (
        "<|channel|>analysis<|message|>why<|end|>"
        "<|start|>assistant<|channel|>final<|message|>so<|return|>",
        Parsed("so", "why"),
    ),
    ("<|channel|>final<|message|>so", Parsed("so")),
    ("<|channel|>analysis<|message|>cut off", Parsed("", "cut off")),
    (
        f"<|channel|>commentary<|message|>I look.<|end|>{CALL}{CALL}",
        Parsed("I look.", "", (ULM, ULM)),
    ),
    (
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Ulm"}',
        Parsed(calls=(ULM,)),
    ),
    (
        "<|channel|>commentary to=functions.now<|message|><|call|>",
        Parsed(calls=(ToolCall("now", "{}"),)),
    ),
    ('<|channel|>commentary to=functions.weather<|message|>{"ci', Parsed('{"ci')),
    ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", Parsed("", "1 + 1")),
    ("<|channel|>analysis<|message|>a <| b <|channel|>final<|message|>c", Parsed("c", "a <| b ")),
    ("<|channel|>final", Parsed()),
    ("no messages <|message|>at all", Parsed("no messages <|message|>at all")),
    ("to", Parsed("to")),
    ("", Parsed()),
]


def opened(tools: Any = TOOLS) -> ChatOutput:
    output = new_chat_output("gpt_oss", "harmony", ToolChoice(tools), "")
    assert output is not None and output.sees_special
    return output


def read(pieces: list[str]) -> Parsed:
    output = opened()
    parsed = [*map(output.feed, pieces), output.flush()]
    return Parsed(
        "".join(each.content for each in parsed),
        "".join(each.reasoning for each in parsed),
        tuple(call for each in parsed for call in each.calls),
    )


@pytest.mark.parametrize("answer, wanted", ANSWERS)
def test_answers(answer: str, wanted: Parsed) -> None:
    assert read([answer]) == wanted
    assert read(list(answer)) == wanted


def test_either_name_is_enough_and_a_forced_answer_has_no_messages() -> None:
    for names in (("gpt_oss", None), (None, "harmony")):
        output = new_chat_output(*names, ToolChoice(TOOLS), "")
        assert output is not None
        assert output.feed(ANSWERS[0][0]) == Parsed("so", "why")
    forced = new_chat_output("gpt_oss", "harmony", ToolChoice(TOOLS, True, "weather"), "")
    assert forced is not None
    assert forced.feed("{}") == Parsed() and forced.flush().calls == (("weather", "{}"),)


def test_without_tools_nothing_is_called() -> None:
    output = opened(())
    assert output.feed(CALL) == Parsed("", '{"city": "Ulm"}') and output.flush() == Parsed()


def test_text_comes_as_it_is_said() -> None:
    output = opened()
    assert output.feed("<|channel|>analysis<|message|>so ") == Parsed("", "so ")
    assert output.feed("it <|") == Parsed("", "it ")
    assert output.feed("b> is") == Parsed("", "<|b> is")


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=20)
MESSAGES = st.one_of(
    st.tuples(st.sampled_from(["analysis", "final", "commentary"]), st.just(""), TEXT),
    st.tuples(
        st.sampled_from(["commentary", "analysis"]),
        st.sampled_from([" to=functions.weather", " to=functions.now"]),
        st.dictionaries(TEXT, TEXT, max_size=2).map(json.dumps),
    ),
    st.tuples(st.just("analysis"), st.just(" to=python"), TEXT),
)


@cache
def openais_reader() -> tuple[Any, Any]:
    harmony = pytest.importorskip("openai_harmony")
    encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    return encoding, harmony.Role.ASSISTANT


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.data())
def test_it_is_read_as_openais_reader_does(messages: list[Any], data: st.DataObject) -> None:
    encoding, assistant = openais_reader()
    written = "<|start|>assistant".join(
        f"<|channel|>{channel}{to}<|message|>{text}" + ("<|call|>" if to else "<|end|>")
        for channel, to, text in messages
    )
    ids = encoding.encode(written, allowed_special="all")
    told = encoding.parse_messages_from_completion_tokens(ids, assistant)
    content, reasoning, calls = "", "", []
    for each in told:
        text = each.content[0].text if each.content else ""
        recipient = each.recipient or ""
        if recipient.startswith("functions."):
            calls.append(ToolCall(recipient.removeprefix("functions."), text.strip()))
        elif recipient or each.channel == "analysis":
            reasoning += text
        else:
            content += text
    cut = data.draw(st.integers(0, len(written)))
    assert read([written[:cut], written[cut:]]) == Parsed(content, reasoning, tuple(calls))
