"""How engines without SubscribeKvEvents tell of their caches, translated into its batches.

Entered by whoever reads an engine's events: a subscriber here gives calls as that of gRPC does.
"""

from .http_events import HttpEvents
from .pulled_call import EventsEnded, EventsLost, EventsRefused, PulledCall
from .trtllm_events import TrtllmEvents
from .zmq_events import ZmqEvents
from .zmq_payload import ZmqPayload

__all__ = [
    "EventsEnded",
    "EventsLost",
    "EventsRefused",
    "HttpEvents",
    "PulledCall",
    "TrtllmEvents",
    "ZmqEvents",
    "ZmqPayload",
]
