"""How do processes call each other? Requests and answers in parts, as Dynamo's processes do it."""

from .faults import Fault, RequestError
from .frames import FrameError
from .nats_carrier import NatsCarrier
from .request_client import Carrier, RequestClient
from .request_server import Handler, RequestContext, RequestServer, annotated

__all__ = [
    "Carrier",
    "Fault",
    "FrameError",
    "Handler",
    "NatsCarrier",
    "RequestClient",
    "RequestContext",
    "RequestError",
    "RequestServer",
    "annotated",
]
