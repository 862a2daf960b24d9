"""Checks of settings that many commands share. Each raises ConfigError, naming the key."""

import math
from typing import Any

from ...process.settings import bad_setting


def require_at_least(config: Any, least: float, *keys: str) -> None:
    """Of a setting that may be repeated, every value, and there must be one; None is not given."""
    for key in keys:
        value = getattr(config, key)
        if isinstance(value, tuple):
            if not value or not min(value) >= least:
                raise bad_setting(key, f"must be numbers of at least {least}")
        elif value is not None and not value >= least:
            raise bad_setting(key, f"{value} must be at least {least}")


def require_positive(config: Any, *keys: str) -> None:
    """Finite numbers above 0; None is not given."""
    for key in keys:
        value = getattr(config, key)
        if value is not None and not 0 < value < math.inf:
            raise bad_setting(key, f"{value} must be finite and greater than 0")
