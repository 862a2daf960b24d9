"""The tool call parser of a model that names none: by the markers in its chat template.

Templates write earlier calls back into the prompt just as the model writes them.
"""

from functools import lru_cache

MARKERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>",)),
    ("harmony", ("<|channel|>", "<|call|>")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("nemotron_deci", ("<TOOLCALL>",)),
    ("jamba", ("<tool_calls>",)),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("qwen3_coder", ("<tool_call>", "<function=")),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("phi4", ("functools[",)),
)
"""A parser and texts that its models' templates have all of; the first that fits is taken."""


@lru_cache(maxsize=64)
def recognised_tool_calls(template: str) -> str | None:
    """The parser's name; None where no known marker is in it."""
    for name, texts in MARKERS:
        if all(text in template for text in texts):
            return name
    return None
