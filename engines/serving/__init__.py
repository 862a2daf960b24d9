"""One engine served as a worker: what it must be able to do, how it is called, told of and found.

Entered by engines (mocker, engines) and by the commands that serve them.
"""

from .config import ServingConfig, require, require_choice, require_positive
from .context import ServingContext, say
from .engine import (
    Answer,
    AnswerPart,
    EngineLoad,
    EngineUnavailableError,
    OnEvents,
    ServedEngine,
)
from .kv_events import (
    ENGINE_TIERS,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CachedBlock,
    KvEvent,
)
from .kv_feed import KvEventFeed, KvSubscription
from .kv_messages import tier_of
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
    "tier_of",
    "unsupported",
]
