"""The libraries of engines, which come with extras of this package or are not there."""

from importlib import import_module
from typing import Any

from ...runtime.errors import ConfigError


def load_library(name: str, extra: str) -> Any:
    """A module of a library. ConfigError, saying how it is installed, if it is not."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise ConfigError(f"{name} cannot be loaded: {error}") from None
        top = name.partition(".")[0]
        text = f"{top} is not installed: pip install 'dynamo-router[{extra}]'"
        raise ConfigError(text) from None
    except ImportError as error:
        raise ConfigError(f"{name} cannot be loaded: {error}") from None
