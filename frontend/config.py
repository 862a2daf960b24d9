"""Settings of the OpenAI frontend, and of `serve` with it."""

import os
from dataclasses import dataclass, field

from ..router.serve_config import ServeConfig
from ..runtime.settings import SHORTEST_S, bad_setting, is_finite, option


@dataclass(frozen=True, kw_only=True)
class FrontendConfig:
    """How OpenAI clients are served. Raises ConfigError, naming the key, on a bad value."""

    http_frontend: int | None = option(
        None, "Port of OpenAI's HTTP API; 0 takes a free one. Not given: it is not served."
    )
    model_path: str | None = option(
        None,
        "Folder with the model's tokenizer.json, tokenizer_config.json and chat template. Not "
        "given: a small tokenizer that comes along, for mock engines.",
    )
    default_max_tokens: int = option(
        1024, "Tokens of an answer whose request says nothing of its length."
    )
    keep_alive_s: float = option(
        15.0, "A stream that was silent for so long gets a comment, so that proxies keep it."
    )

    def __post_init__(self) -> None:
        if self.http_frontend is not None and not 0 <= self.http_frontend <= 65535:
            raise bad_setting("http_frontend", "must be in 0..65535")
        if self.model_path is not None and not os.path.isdir(self.model_path):
            raise bad_setting("model_path", f"{self.model_path} is no folder")
        if self.default_max_tokens < 1:
            raise bad_setting("default_max_tokens", "must be at least 1")
        if not (is_finite(self.keep_alive_s) and self.keep_alive_s >= SHORTEST_S):
            raise bad_setting("keep_alive_s", f"must be at least {SHORTEST_S:g}")


@dataclass(frozen=True, kw_only=True)
class ServeFrontendConfig(ServeConfig):
    """What `dynamo-router serve` runs: the router, and a frontend if its port is given."""

    frontend: FrontendConfig = field(default_factory=FrontendConfig, metadata={"inline": True})
