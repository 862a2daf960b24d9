"""Parsers of what a model says: its reasoning, its calls of tools, and the rest.

Each model family writes them in a way of its own; which one is meant says a name, as Dynamo's and
vLLM's settings have it. Pure.
"""

from .chat_output import (
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    ChatOutput,
    exclude_each_other,
    new_chat_output,
)
from .model_parsers import NO_PARSER, ModelParsers, parsers_of
from .recognised import recognised_tool_calls
from .tool_calls import Parsed, ToolCall
