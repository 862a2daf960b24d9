"""The text of a server's one model; and the token cache: what is kept of texts, and its metrics."""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric

from ..engines.mocker import OWN_MODEL
from ..process.off_loop import OffLoop
from ..server.metrics import counter_by, gauges, source
from ..server.server_parts import ServerParts
from .config import FrontendConfig
from .processor import ModelText, PieceCache


def piece_cache(config: FrontendConfig, parts: ServerParts) -> PieceCache:
    """One for all models of the process, shown among its metrics."""
    pieces = PieceCache(config.token_cache_bytes)
    parts.metrics.add(_metrics(pieces))
    return pieces


def model_text(
    config: FrontendConfig, off_loop: OffLoop, pieces: PieceCache | None = None
) -> ModelText:
    """The text of the one model of `serve`. ConfigError if its files cannot be used."""
    given = config.model_path
    return ModelText(OWN_MODEL if given is None else Path(given), off_loop, pieces)


@source
def _metrics(pieces: PieceCache) -> Iterator[Metric]:
    """What was spared of encoding, and what it takes."""
    yield counter_by(
        "source",
        "dynamo_router_token_cache_characters",
        "Characters of long prompts, by where their token ids came from: cache or tokenizer.",
        {"cache": pieces.found_chars, "tokenizer": pieces.encoded_chars},
    )
    yield counter_by(
        "reason",
        "dynamo_router_token_cache_evictions",
        "Pieces of prompts dropped from the token cache: full.",
        {"full": pieces.dropped},
    )
    yield counter_by(
        "result",
        "dynamo_router_long_chat_checks",
        "Turns of long chats that were rendered as a whole, too, by what came of it: same; differs,"
        " which turns kept beginnings off for the model; unsure, where the template is not the same"
        " each time.",
        pieces.checks,
    )
    yield from gauges(
        "dynamo_router_token_cache_",
        ("bytes", "Memory that token ids of pieces of prompts take.", pieces.size),
        ("pieces", "Pieces of prompts whose token ids are kept.", len(pieces)),
    )
