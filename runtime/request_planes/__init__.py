"""How do processes call each other? Requests and answers in parts, as Dynamo's processes do it."""

from .frames import FrameError
from .response_reader import Fault
from .tcp_client import RequestError, TcpRequestClient
from .tcp_server import Handler, RequestContext, TcpRequestServer, annotated

__all__ = [
    "Fault",
    "FrameError",
    "Handler",
    "RequestContext",
    "RequestError",
    "TcpRequestClient",
    "TcpRequestServer",
    "annotated",
]
