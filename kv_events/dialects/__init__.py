"""How engines without SubscribeKvEvents offer their events: over ZMQ, over HTTP.

Entered by readers of an engine's events: a subscriber here gives calls as that of gRPC does.
"""

from .http_events import HttpEvents
from .pulled_call import EventsEnded, EventsLost, EventsRefused, PulledCall
from .trtllm_events import RankEvents, TrtllmEvents
from .zmq_events import ZmqEvents, ZmqMessage

__all__ = [
    "EventsEnded",
    "EventsLost",
    "EventsRefused",
    "HttpEvents",
    "PulledCall",
    "RankEvents",
    "TrtllmEvents",
    "ZmqEvents",
    "ZmqMessage",
]
