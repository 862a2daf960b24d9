"""The formats of calls by their names, which are those that Dynamo has for them."""

from .call_readers import (
    read_deepseek_calls,
    read_glm_calls,
    read_json_calls,
    read_kimi_calls,
    read_named_calls,
    read_python_calls,
    read_xml_calls,
)
from .tool_calls import ToolCallFormat

_HERMES = ToolCallFormat("<tool_call>", "</tool_call>", read_json_calls)
_DEEPSEEK = ToolCallFormat(
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", read_deepseek_calls, special=True
)
_GLM = ToolCallFormat("<tool_call>", "</tool_call>", read_glm_calls)
TOOL_CALL_FORMATS: dict[str, ToolCallFormat] = {
    "hermes": _HERMES,
    "qwen25": _HERMES,
    "qwen3": _HERMES,
    "qwen3_coder": ToolCallFormat("<tool_call>", "</tool_call>", read_xml_calls),
    "llama3_json": ToolCallFormat("<|python_tag|>", "", read_json_calls, special=True, bare=True),
    "pythonic": ToolCallFormat("<|python_start|>", "", read_python_calls, special=True, bare=True),
    "mistral": ToolCallFormat("[TOOL_CALLS]", "", read_named_calls, special=True),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v3_1": _DEEPSEEK,
    "glm45": _GLM,
    "glm47": _GLM,
    "jamba": ToolCallFormat("<tool_calls>", "</tool_calls>", read_json_calls),
    "kimi_k2": ToolCallFormat(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        read_kimi_calls,
        special=True,
    ),
    "nemotron_deci": ToolCallFormat("<TOOLCALL>", "</TOOLCALL>", read_json_calls),
    "phi4": ToolCallFormat("functools", "", read_json_calls),
}
