"""Checks of settings: each refuses by the key's name."""

from types import SimpleNamespace
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.process.setting_checks import require_at_least, require_positive


@pytest.mark.parametrize("value", [1, 2.5, None, (1, 2), float("inf")])
def test_what_is_enough_is_taken(value: Any) -> None:
    require_at_least(SimpleNamespace(key=value), 1, "key")


@pytest.mark.parametrize("value", [0, -1, 0.5, float("nan"), (), (4, 0), (float("nan"),)])
def test_what_is_too_little_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="^key: .*at least 1") as caught:
        require_at_least(SimpleNamespace(other=1, key=value), 1, "other", "key")
    assert caught.value.key == "key"


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_only_finite_numbers_above_0_are_positive(value: float) -> None:
    require_positive(SimpleNamespace(key=0.1, other=None), "key", "other")
    with pytest.raises(ConfigError, match="^key: .*finite and greater than 0"):
        require_positive(SimpleNamespace(key=value), "key")
