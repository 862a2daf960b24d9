"""ModelParsers: which parsers read a model's answers, by the settings and by its workers' cards."""

from functools import cache
from typing import NamedTuple

from .chat_output import REASONING_PARSERS, TOOL_CALL_PARSERS, exclude_each_other

NO_PARSER = "none"
"""As a setting: the model's text is passed on as it is, whatever its card names."""


class ModelParsers(NamedTuple):
    """Those of one model; None where it needs none. What its card names and is not known here is
    `unknown_...`: an answer that needs that parser cannot be read, and is refused."""

    reasoning: str | None = None
    tool_calls: str | None = None
    unknown_reasoning: str = ""
    unknown_tool_calls: str = ""

    @property
    def chat_refusal(self) -> str:
        """Why no chat request can be answered: reasoning would pass for the answer. Empty if one
        can."""
        return self.unknown_reasoning and _refusal("reasoning parser", self.unknown_reasoning)

    @property
    def tools_refusal(self) -> str:
        """Why calls of tools cannot be read. Empty if they can, or no parser is named."""
        return self.unknown_tool_calls and _refusal("tool call parser", self.unknown_tool_calls)

    @property
    def reason(self) -> str:
        """What is refused, and why, for people; empty if nothing is."""
        refused = (("chat", self.chat_refusal), ("tools", self.tools_refusal))
        return "; ".join(f"{what} refused: {why}" for what, why in refused if why)


@cache
def parsers_of(
    reasoning: str | None = None,
    tool_calls: str | None = None,
    card_reasoning: str = "",
    card_tool_calls: str = "",
) -> ModelParsers:
    """`reasoning` and `tool_calls` are the settings, which go before what the card names."""
    found = ModelParsers(
        _of_setting(reasoning, card_reasoning, REASONING_PARSERS),
        _of_setting(tool_calls, card_tool_calls, TOOL_CALL_PARSERS),
        "" if reasoning or card_reasoning in REASONING_PARSERS else card_reasoning,
        "" if tool_calls or card_tool_calls in TOOL_CALL_PARSERS else card_tool_calls,
    )
    if not exclude_each_other(found.reasoning, found.tool_calls):
        return found
    # One form is for the whole answer. Settings are never such a pair: one of the two is a card's.
    if reasoning:
        return found._replace(tool_calls=None, unknown_tool_calls=card_tool_calls)
    if tool_calls:
        return found._replace(reasoning=None, unknown_reasoning=card_reasoning)
    return ModelParsers(unknown_reasoning=f"{card_reasoning} beside {card_tool_calls}")


def _of_setting(setting: str | None, of_card: str, known: tuple[str, ...]) -> str | None:
    if setting is not None:
        return None if setting == NO_PARSER else setting
    return of_card if of_card in known else None


def _refusal(kind: str, name: str) -> str:
    option = kind.replace(" ", "-")
    return (
        f"its card names the {kind} {name!r:.80}, which this router does not have: see --{option}"
    )
