"""Who is there? Registrations that live as long as their process, values that follow the store."""

from .locks import HeldLock, ReadWriteLock
from .prefix_watcher import PrefixWatcher, full_key_string, key_string, lease_id
from .registrations import Registrations
from .store_watch import Reconciler, StoreWatch, Watch

__all__ = [
    "HeldLock",
    "PrefixWatcher",
    "ReadWriteLock",
    "Reconciler",
    "Registrations",
    "StoreWatch",
    "Watch",
    "full_key_string",
    "key_string",
    "lease_id",
]
