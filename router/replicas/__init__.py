"""Routers in front of the same workers: each counts what the others have booked. No I/O; the
server's replica_sync.py carries the messages.
"""

from .dynamo_replicas import ACTIVE_SEQUENCES, DynamoReplicas
from .peer_load import PeerLoad
from .replica import Replica
from .session_sync import SESSION_AFFINITY, SessionSync
