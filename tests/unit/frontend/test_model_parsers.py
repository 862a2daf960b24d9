"""Which parsers read a model's answers: a setting, or else what the card names."""

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.frontend.config import FrontendConfig, ModelFrontendConfig
from dynamo_router.frontend.parsers import ModelParsers, parsers_of
from dynamo_router.workers.records import DiscoveryConfig


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((None, None, "", ""), (None, None)),
        ((None, None, "qwen3", "hermes"), ("qwen3", "hermes")),
        (("deepseek_r1", None, "qwen3", "hermes"), ("deepseek_r1", "hermes")),
        ((None, "mistral", "qwen3", "hermes"), ("qwen3", "mistral")),
        (("none", "none", "qwen3", "hermes"), (None, None)),
        (("none", "none", "new", "newer"), (None, None)),
        (("qwen3", "hermes", "new", "newer"), ("qwen3", "hermes")),
        ((None, None, "gpt_oss", "harmony"), ("gpt_oss", "harmony")),
    ],
)
def test_a_setting_goes_before_the_card(
    given: tuple[str | None, str | None, str, str], found: tuple[str | None, str | None]
) -> None:
    assert parsers_of(*given) == ModelParsers(*found)
    assert parsers_of(*given).reason == ""


def test_what_a_card_names_and_is_not_known_is_refused_by_name() -> None:
    parsers = parsers_of(None, None, "newer", "newest")
    assert parsers.reasoning is parsers.tool_calls is None
    assert "'newer'" in parsers.chat_refusal and "--reasoning-parser" in parsers.chat_refusal
    assert "'newest'" in parsers.tools_refusal and "--tool-call-parser" in parsers.tools_refusal
    assert "chat refused" in parsers.reason and "tools refused" in parsers.reason
    assert not parsers_of(None, None, "qwen3", "newest").chat_refusal


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (("gpt_oss", None, "", "hermes"), "tools"),
        ((None, "harmony", "qwen3", ""), "chat"),
        ((None, None, "gpt_oss", "hermes"), "chat"),
    ],
)
def test_parsers_of_two_forms_are_never_mixed(
    given: tuple[str | None, str | None, str, str], refused: str
) -> None:
    assert parsers_of(*given).reason.startswith(f"{refused} refused")


def test_both_commands_take_them() -> None:
    store = DiscoveryConfig(discovery="file")
    config = ModelFrontendConfig(discovery=store, reasoning_parser="qwen3", tool_call_parser="none")
    assert config.frontend.parsers() == ModelParsers("qwen3")
    assert FrontendConfig(reasoning_parser="qwen3").parsers() == ModelParsers("qwen3")
    with pytest.raises(ConfigError, match="'nonsense' is none of"):
        ModelFrontendConfig(discovery=store, reasoning_parser="nonsense")
