"""dynamo-router serve, with a frontend for OpenAI clients if one was asked for; and frontend."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..base.errors import ConfigError
from ..engines.mocker import OWN_MODEL
from ..process.logs import LogOutput
from ..process.settings import SettingsSource
from ..server.command import Service, run_service
from ..server.command import run as run_router
from ..server.server import Attachment, Server
from .config import ModelFrontendConfig, ServeFrontendConfig

if TYPE_CHECKING:
    from .frontend import AttachedFrontend

NEEDED = ("jinja2", "tokenizers")


def run(config: ServeFrontendConfig, source: SettingsSource[Any] | None = None) -> int:
    """The command: 1, and a line on why, if it cannot start."""

    def attach(server: Server) -> Attachment | None:
        return frontend_of(server, config)

    return run_router(config, source, attach)


def frontend_of(server: Server, config: ServeFrontendConfig) -> "AttachedFrontend | None":
    """The frontend of a server that was not started; None if none was asked for.

    ConfigError if the extra `frontend` is not installed, or the model's files are no good.
    """
    if config.frontend.http_frontend is None:
        return None
    check_installed("http_frontend")
    from .frontend import AttachedFrontend  # not before: the router alone needs none of them

    return AttachedFrontend(server, config, OWN_MODEL)


def check_installed(key: str) -> None:
    """ConfigError, naming the key, if the extra `frontend` is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the frontend needs {', '.join(missing)}: pip install 'dynamo-router[frontend]'",
            key=key,
        )


def run_models(
    config: ModelFrontendConfig, source: SettingsSource[ModelFrontendConfig] | None = None
) -> int:
    """The command `frontend`: 1, and a line on why, if it cannot start."""

    def make(output: LogOutput) -> Service:
        check_installed("http_port")
        from .model_server import ModelServer

        return ModelServer(config, source, output)

    return run_service(config, make)
