"""How engines without SubscribeKvEvents offer their events: over ZMQ, over HTTP.

Entered by readers of an engine's events: a subscriber here gives calls as that of gRPC does.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .pulled_call import EventsEnded, EventsLost, EventsRefused, PulledCall
from .trtllm_events import TrtllmEvents
from .zmq_events import ZmqEvents, ZmqMessage

if TYPE_CHECKING:
    from .http_events import HttpEvents

# The HTTP client comes with it.
__getattr__ = lazy_names(__name__, {"HttpEvents": ".http_events"})
