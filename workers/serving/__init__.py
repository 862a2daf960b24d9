"""One engine served as a worker: what it must be able to do, how it is called, told of and found.

Entered by engines (mocker, engines) and by the commands that serve them.
"""

from .config import ServingConfig, require, require_choice, require_positive
from .engine import (
    Answer,
    AnswerPart,
    EngineLoad,
    EngineUnavailableError,
    OnEvents,
    ServedEngine,
)
from .event_plane import open_event_plane, say
from .kv_events import (
    ENGINE_TIERS,
    BlocksRemoved,
    BlocksStored,
    CachedBlock,
    KvEvent,
)
from .kv_feed import KvEventFeed, KvSubscription
from .registration import WorkerRegistration
from .request import EngineRequest, unsupported
from .server import EngineServer

__all__ = [
    "ENGINE_TIERS",
    "Answer",
    "AnswerPart",
    "BlocksRemoved",
    "BlocksStored",
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
    "WorkerRegistration",
    "open_event_plane",
    "require",
    "require_choice",
    "require_positive",
    "say",
    "unsupported",
]
