"""What a mock engine must answer to a chat, by libraries that the router does not ask."""

import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from tokenizers import Tokenizer

from dynamo_router.engines.mocker.own_model import OWN_MODEL, OWN_VOCABULARY
from dynamo_router.engines.mocker.sampling import plan_output
from dynamo_router.engines.serving.request import EngineRequest

TEMPLATE = """\
{%- for tool in tools or () -%}
{{ bos_token }}tool
{{ tool.function.name }}: {{ tool.function.description }}{{ eos_token }}
{% endfor -%}
"""
"""What stands before the own model's template, which says nothing of tools."""
ENDS = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
EOS = 2


class Expected(NamedTuple):
    """An answer, its prompt, and how many tokens both have."""

    prompt: list[int]
    text: str
    tokens: int


def write_model(folder: Path) -> Path:
    """The mock engines' own model, with a template that shows tools."""
    shutil.copytree(OWN_MODEL, folder)
    template = folder / "chat_template.jinja"
    template.write_text(TEMPLATE + template.read_text())
    return folder


class ChatOracle:
    """Of the model in a folder that `write_model` wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _tokenizer(self) -> Any:
        return Tokenizer.from_file(str(self._folder / "tokenizer.json"))

    @cached_property
    def _template(self) -> Any:
        made = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        return made.from_string((self._folder / "chat_template.jinja").read_text())

    def answer(self, chat: dict[str, Any]) -> Expected:
        """What is said to a chat that asks for `max_tokens`."""
        text = self._template.render(
            messages=chat["messages"], tools=chat.get("tools"), add_generation_prompt=True, **ENDS
        )
        prompt = self._tokenizer.encode(text, add_special_tokens=False).ids
        plan = plan_output(
            EngineRequest(
                request_id="",
                token_ids=np.array(prompt, np.uint32),
                max_tokens=chat["max_tokens"],
                seed=chat.get("seed"),
            ),
            vocab_size=OWN_VOCABULARY,
            ends=frozenset({EOS}),
        )
        ids = plan.tokens.tolist()
        return Expected(prompt, self._tokenizer.decode(ids, skip_special_tokens=True), len(ids))


class StreamedAnswer:
    """Reads the events of a streamed chat; `wrong` says what must not be among them."""

    def __init__(self) -> None:
        self.text, self.error = "", ""
        self.reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.done = False
        self.wrong: list[str] = []
        self._rest = b""

    def take(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._take_event(event)

    @property
    def cut(self) -> bool:
        """Whether an event came in part."""
        return bool(self._rest)

    def _take_event(self, event: bytes) -> None:
        if event.startswith(b":"):
            return
        if self.done:
            self.wrong.append("an event came behind the end")
        told = event.removeprefix(b"data: ")
        if told == b"[DONE]":
            self.done = True
            return
        body = json.loads(told)
        if "error" in body:
            self.error = body["error"]["message"]
            return
        self.usage = body.get("usage") or self.usage
        for choice in body["choices"]:
            if self.reason is not None:
                self.wrong.append("text came behind its finish reason")
            self.text += choice["delta"].get("content") or ""
            self.reason = choice["finish_reason"] or self.reason
