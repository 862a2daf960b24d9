"""One engine served as a worker: what it must be able to do, how it is called, told of and found.

Entered by engines (mocker, engines) and by the commands that serve them.
"""

from .config import ServingConfig, require, require_choice, require_positive
from .context import ServingContext
from .engine import (
    Answer,
    AnswerPart,
    EngineLoad,
    EngineUnavailableError,
    OnEvents,
    ServedEngine,
)
from .event_plane import say
from .kv_events import (
    ENGINE_TIERS,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CachedBlock,
    KvEvent,
)
from .kv_feed import KvEventFeed, KvSubscription
from .registration import WorkerRegistration
from .request import EngineRequest, unsupported
from .server import EngineServer
from .worker import run_worker

__all__ = [
    "ENGINE_TIERS",
    "Answer",
    "AnswerPart",
    "BlocksRemoved",
    "BlocksStored",
    "CacheCleared",
    "CachedBlock",
    "EngineLoad",
    "EngineUnavailableError",
    "EngineRequest",
    "EngineServer",
    "KvEvent",
    "KvEventFeed",
    "KvSubscription",
    "OnEvents",
    "ServedEngine",
    "ServingConfig",
    "ServingContext",
    "WorkerRegistration",
    "require",
    "require_choice",
    "require_positive",
    "run_worker",
    "say",
    "unsupported",
]
