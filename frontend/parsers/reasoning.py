"""Reasoning: what a model thinks before it answers, between two markers."""

from typing import NamedTuple

from .markers import MarkerScanner


class ReasoningFormat(NamedTuple):
    """`begins_inside`: the model writes no opening marker, as its prompt ends with one."""

    start: str
    end: str
    begins_inside: bool = False


_THINK = ReasoningFormat("<think>", "</think>")
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "basic": _THINK,
    "qwen3": _THINK,
    "glm45": _THINK,
    "glm47": _THINK,
    "deepseek_v3_1": _THINK,
    "kimi_k2": _THINK,
    "nemotron_deci": _THINK,
    "deepseek_r1": _THINK._replace(begins_inside=True),
    "step3": _THINK._replace(begins_inside=True),
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "granite": ReasoningFormat("Here is my thought process:", "Here is my response:"),
}
"""By the names that Dynamo has for them."""


class Split(NamedTuple):
    reasoning: str
    content: str


class ReasoningParser:
    """Splits one answer. A marker that is written again later is content.

    `prompt_tail`, the end of the prompt: if it is the opening marker, the answer begins inside.
    `held`: the engine holds the answer to JSON, perhaps from its first character on.
    """

    def __init__(self, form: ReasoningFormat, prompt_tail: str = "", *, held: bool = False) -> None:
        self._form = form
        self._held = held
        self._scanner = MarkerScanner()
        self._inside = form.begins_inside or prompt_tail.rstrip().endswith(form.start)
        self._may_open = form.begins_inside  # by a marker that is written all the same
        self._over = False
        self._content_begun = False

    def feed(self, text: str) -> Split:
        """The next piece of the answer."""
        self._scanner.feed(text)
        reasoning = content = ""
        if self._held:
            begun = self._scanner.peek().lstrip()
            if not begun and not self._scanner.is_blank:  # of what, is not known yet
                return Split("", "")
            self._held = False
            if begun[:1] in ("{", "[") and not self._form.start.startswith(begun[:1]):
                self._inside, self._over = False, True
        if not self._inside and not self._over:
            content = self._find_start()
        if self._inside:
            reasoning = self._read_inside()
        if self._over:
            content += self._scanner.take_all()
        return Split(reasoning, self._trimmed(content))

    def flush(self) -> Split:
        """The answer is over."""
        held = self._scanner.take_all()
        return Split(held, "") if self._inside else Split("", self._trimmed(held))

    def _find_start(self) -> str:
        """Text before the opening marker; only white space may come before it."""
        held = self._scanner.peek()
        begun = held.lstrip()
        start = self._form.start
        if begun.startswith(start):
            self._scanner.take_until(start)
            self._inside = True
        elif self._scanner.is_blank or not start.startswith(begun):
            self._over = True
            return self._scanner.take_all()
        return ""

    def _read_inside(self) -> str:
        if self._may_open:
            begun, start = self._scanner.peek().lstrip(), self._form.start
            if start.startswith(begun) and begun != start and not self._scanner.is_blank:
                return ""
            self._may_open = False
            if begun.startswith(start):
                self._scanner.take_until(start)
        cut = self._scanner.take_until(self._form.end)
        if cut.found:
            self._inside, self._over = False, True
        return cut.text

    def _trimmed(self, content: str) -> str:
        """Without the empty lines between reasoning and content."""
        if self._content_begun or not self._over:
            return content
        content = content.lstrip("\n")
        self._content_begun = bool(content)
        return content
