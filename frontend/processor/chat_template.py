"""Chat templates: a conversation to the text that the model was trained on.

The rules are those of Hugging Face transformers (apply_chat_template), which models are published
with: a sandboxed Jinja, blocks trimmed, and the few names below.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2 import nodes as jinja_nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...base.errors import ConfigError, InvalidRequestError
from .conversation import Conversation
from .growing_template import GrowingTemplate, Grown, Point
from .template_loop import FOUND, cut_loop, draws
from .template_pieces import TemplatePieces, messages_in, passes_contents_on
from .template_text import EDGES

MAX_RENDERED_CHARS = 16 << 20
"""A template is a program of the model's author; its output is bounded."""
MOST_VERDICTS = 1024
_OF_DICTS = frozenset(dir(dict))


class ChatTemplate:
    """A model's template. ConfigError if it does not parse.

    `special_tokens` are the names that templates know them by: bos_token, eos_token and so on.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self.source = text
        try:
            self._template = _compiled(text)
            tree = _environment().parse(text)
        except TemplateError as error:
            raise ConfigError(f"the chat template does not parse: {error}") from None
        self.takes_parts = _loops_over_content(tree)
        """whether it wants a message's content as a list of parts, where it has some"""
        self.variables = frozenset(find_undeclared_variables(tree))
        """what it reads of its context"""
        self.pieces: TemplatePieces | None = None
        """what it writes around contents; None: it does more with them than to write them"""
        all_text = "".join((text, *self._special_tokens.values()))
        if not any(edge in all_text for edge in EDGES) and passes_contents_on(tree):
            self.pieces = TemplatePieces(self._rendered_plain)
        self.draws = draws(tree)
        """whether it may write another text each time"""
        self.growing = None if self.draws else _growing(text)
        """how it goes on with a conversation that grew; None: it is to be asked for all of it"""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text; InvalidRequestError if the template refuses the conversation.
        `variables` are others of the template's, whatever their names."""
        if self.pieces is not None and tools is None and not variables:
            text = self.pieces.put_together(messages, add_generation_prompt)
            if text is not None and len(text) <= MAX_RENDERED_CHARS:
                return text
        return self.render_whole(messages, add_generation_prompt, tools, variables)

    def grow(
        self,
        count: int,
        read: Callable[[int], Mapping[str, Any]],
        points: Sequence[Point],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
        settled: int | None = None,
    ) -> Grown | None:
        """What it writes of `count` messages, which `read` reads by their numbers, behind one of
        these points. `settled`: how many of them stay as they are, whatever comes; None: all.
        None: it is to be asked for all."""
        if self.growing is None:
            return None
        seen = read if self.takes_parts else lambda number: _flattened(read(number))
        given = self._context(add_generation_prompt, tools, variables)
        chat = Conversation(count, seen, settled)
        return self.growing.render(chat, given, points, MAX_RENDERED_CHARS)

    def _context(
        self,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """What it reads but for messages."""
        return {
            "documents": None,  # which templates ask for
            **self._special_tokens,
            **(variables or {}),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }

    def _rendered_plain(self, messages: Sequence[Mapping[str, Any]], prompted: bool) -> str:
        return self.render_whole(messages, prompted, None, None)

    def render_whole(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> str:
        """The same by the template itself, whatever is known of it."""
        if not self.takes_parts:
            messages = [_flattened(message) for message in messages]
        context = self._context(add_generation_prompt, tools, variables)
        context["messages"] = messages
        pieces: list[str] = []
        length = 0
        template = self._template
        try:  # as Template.generate does, without a generator around the template's own
            for piece in template.root_render_func(template.new_context(context)):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_RENDERED_CHARS:
                    text = f"the conversation has more than {MAX_RENDERED_CHARS} characters"
                    raise InvalidRequestError(text, field="messages")
        except InvalidRequestError:
            raise
        except Exception as error:  # it may fail in any way that Python may
            reason = str(error) or type(error).__name__
            raise InvalidRequestError(
                f"the chat template refuses these messages: {reason}", field="messages"
            ) from None
        return "".join(pieces)


class _Generation(Extension):
    """{% generation %}...{% endgeneration %} marks what a model is trained on: here, nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[jinja_nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Environment(ImmutableSandboxedEnvironment):
    """The same rules, by which a field of a message costs no exception, and an attribute's kind is
    judged once: of a long chat the rules took half of the time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._verdicts: dict[tuple[type, str], bool] = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is not dict or attribute in _OF_DICTS:
            return super().getattr(obj, attribute)
        try:
            return obj[attribute]
        except KeyError:
            return self.undefined(obj=obj, name=attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # It depends on nothing else.
        key, verdicts = (type(obj), attr), self._verdicts
        safe = verdicts.get(key)
        if safe is None:
            if len(verdicts) >= MOST_VERDICTS:
                verdicts.clear()  # of names that a template makes up
            safe = verdicts[key] = super().is_safe_attribute(obj, attr, value)
        return safe


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _compiled(source: str | jinja_nodes.Template) -> Template:
    template = _environment().from_string(source)
    # Copied for each rendering, which takes long of the chain of tables that it comes as.
    template.globals = dict(template.globals)
    return template


def _growing(text: str) -> GrowingTemplate | None:
    tree = _environment().parse(text)
    loop = cut_loop(tree, messages_in(tree))
    if loop is None:
        return None
    searches = []
    for name, asked in loop.searches:
        target = jinja_nodes.Name(FOUND, "store")
        found = jinja_nodes.Template([jinja_nodes.Assign(target, asked, lineno=1)], lineno=1)
        searches.append((name, _compiled(found)))
    rest = _compiled(jinja_nodes.Template(loop.rest, lineno=1)) if loop.rest else None
    return GrowingTemplate(loop, _compiled(tree), rest, searches)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it; Jinja's own filter would escape it for HTML."""
    dump = partial(json.dumps, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
    return dump(value, separators=separators)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _flattened(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its text parts as one string, for templates that know nothing else."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part.get("text", "") for part in content)}


def _loops_over_content(tree: jinja_nodes.Template) -> bool:
    """Whether the template goes through a message's content part by part."""
    return any(_is_content(loop.iter) for loop in tree.find_all(jinja_nodes.For))


def _is_content(node: jinja_nodes.Node) -> bool:
    if isinstance(node, jinja_nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja_nodes.Getitem):
        return isinstance(node.arg, jinja_nodes.Const) and node.arg.value == "content"
    return False
