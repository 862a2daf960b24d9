"""Checks of settings that many commands share. Each raises ConfigError, naming the key."""

from typing import Any

from .settings import bad_setting, is_finite


def require_at_least(config: Any, least: float, *keys: str) -> None:
    """Of a setting that may be repeated, every value, and there must be one; None is not given."""
    for key in keys:
        value = getattr(config, key)
        if isinstance(value, tuple):
            if not value or not min(value) >= least:
                raise bad_setting(key, f"must be numbers of at least {least}")
        elif value is not None and not value >= least:
            raise bad_setting(key, f"{value!r} must be at least {least}")


def check_finite(key: str, value: float, least: float) -> None:
    """A finite number of at least `least`."""
    if not (is_finite(value) and value >= least):
        raise bad_setting(key, f"{value!r} must be finite and at least {least:g}")


def require_finite(config: Any, least: float, *keys: str) -> None:
    """The same of each setting; None is not given."""
    for key in keys:
        if (value := getattr(config, key)) is not None:
            check_finite(key, value, least)


def require_positive(config: Any, *keys: str) -> None:
    """Finite numbers above 0; None is not given."""
    for key in keys:
        value = getattr(config, key)
        if value is not None and not (is_finite(value) and value > 0):
            raise bad_setting(key, f"{value!r} must be finite and greater than 0")


def require_share(config: Any, *keys: str) -> None:
    """Numbers from 0 to 1."""
    for key in keys:
        if not 0 <= getattr(config, key) <= 1:
            raise bad_setting(key, f"{getattr(config, key)!r} must be from 0 to 1")
