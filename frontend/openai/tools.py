"""Tools of a chat request: which there are, and whether the answer must call one."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from .errors import ApiError
from .guides import Guide

MOST_TOOLS = 1536


class ToolChoice(NamedTuple):
    """What a request says of its tools. `forced`: the answer is calls and nothing else; `name`: of
    this tool alone."""

    tools: Sequence[Mapping[str, Any]] = ()
    forced: bool = False
    name: str | None = None
    asked: bool = False
    """the request says that calls are to be found, rather than only naming tools"""
    single: bool = False
    """an answer has one call at most"""

    @property
    def guide(self) -> Guide | None:
        """What holds a forced answer to its form: the arguments of the one tool, or a list of
        {"name", "parameters"}. None: it is not forced."""
        if not self.forced:
            return None
        return Guide("tool_choice", "JSON_SCHEMA", msgspec.json.encode(self._schema()).decode())

    def _schema(self) -> dict[str, Any]:
        functions = [tool["function"] for tool in self.tools]
        by_name = {each["name"]: each.get("parameters") or {"type": "object"} for each in functions}
        if self.name is not None:
            return dict(by_name[self.name])
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": schema},
                "required": ["name", "parameters"],
            }
            for name, schema in by_name.items()
        ]
        schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
        return {**schema, "maxItems": 1} if self.single else schema


NO_TOOLS = ToolChoice()


def tool_choice_of(tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> ToolChoice:
    """ApiError 400, naming the field, if the tools are none or the choice is not among them."""
    tools = tools or ()
    if len(tools) > MOST_TOOLS:
        raise ApiError(400, f"there are more than {MOST_TOOLS} tools", param="tools")
    names = [_name_of(at, tool) for at, tool in enumerate(tools)]
    if choice in (None, "none"):
        return ToolChoice(tools if choice is None else ())
    if not tools:
        if choice == "auto":
            return ToolChoice()
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
    if choice == "auto":
        return ToolChoice(tools, asked=True)
    if choice == "required":
        return ToolChoice(tools, True, asked=True)
    wanted = choice.get("function") if isinstance(choice, dict) else None
    name = wanted.get("name") if isinstance(wanted, dict) else None
    if name not in names:
        text = "tool_choice must be none, auto, required, or name one of the tools"
        raise ApiError(400, text, param="tool_choice")
    return ToolChoice(tools, True, name, asked=True)


def _name_of(at: int, tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if tool.get("type") != "function" or not isinstance(name, str) or not name:
        raise ApiError(400, f"tools[{at}] is no function with a name", param=f"tools[{at}]")
    assert isinstance(function, dict)
    if not isinstance(function.get("parameters") or {}, dict):
        text = f"tools[{at}].function.parameters is no JSON schema"
        raise ApiError(400, text, param=f"tools[{at}]")
    return name
