"""Session affinity: the requests of one session go to the worker that has the session's cache.

Entered by KvRouter (which worker a session wants), by the services (which session a
request belongs to), and by the replica sync (what other routers bound).
"""

from .bindings import Binding, SessionTable
from .config import AffinityConfig
from .session import (
    ALL_SESSION_KEYS,
    SESSION_FINAL_KEY,
    SESSION_ID_KEY,
    SESSION_KEYS,
    SESSION_TIMEOUT_KEY,
    Session,
    read_session,
)
from .session_affinity import BoundWorker, SessionAffinity
