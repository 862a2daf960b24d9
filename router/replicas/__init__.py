"""Routers in front of the same workers: each counts what the others have booked."""

from .peer_load import PeerLoad
from .replica import Replica
from .replica_sync import ReplicaSync

__all__ = ["PeerLoad", "Replica", "ReplicaSync"]
