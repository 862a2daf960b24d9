"""One engine served as a worker: what it must be able to do, how it is called, told of and found.

Entered by engines (mocker, engines) and by the commands that serve them.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .config import ServingConfig, require, require_choice, require_positive
from .kv_events import (
    ENGINE_TIERS,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CachedBlock,
    KvEvent,
)

if TYPE_CHECKING:
    from .context import ServingContext
    from .engine import (
        AnswerPart,
        EngineLoad,
        EngineUnavailableError,
        OnEvents,
        ServedEngine,
    )
    from .kv_feed import KvEventFeed, KvSubscription
    from .metrics_page import MetricsPage, request_plane_metrics
    from .registration import WorkerRegistration, metadata_bucket
    from .request import EngineRequest, unsupported
    from .server import EngineServer
    from .worker import run_worker

# What serves is imported by its first user, so that settings of engines are read without it.
_ENGINE = "AnswerPart EngineLoad EngineUnavailableError OnEvents ServedEngine"
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(_ENGINE.split(), ".engine"),
        **dict.fromkeys(("EngineRequest", "unsupported"), ".request"),
        **dict.fromkeys(("KvEventFeed", "KvSubscription"), ".kv_feed"),
        "EngineServer": ".server",
        **dict.fromkeys(("MetricsPage", "request_plane_metrics"), ".metrics_page"),
        "ServingContext": ".context",
        **dict.fromkeys(("WorkerRegistration", "metadata_bucket"), ".registration"),
        "run_worker": ".worker",
    },
)
