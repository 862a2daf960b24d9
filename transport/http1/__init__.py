"""HTTP/1.1 of a server, on llhttp (httptools): connections, routes, and answers of any kind."""

from .application import (
    UNKNOWN_ROUTE,
    Application,
    Asked,
    Handler,
    HttpCall,
    Routes,
    RouteTable,
    answer_json,
    answer_whole,
)
from .asgi import (
    Client,
    ClientLeftError,
    Message,
    Receive,
    Scope,
    Send,
    encoded,
)
from .connection import App, HttpConnection
from .errors import ErrorAnswer, ErrorForm, HttpError, plain_error
from .limits import HttpLimits
from .listener import HttpListener
from .observer import AnswerObserver
from .open_connections import OpenConnections

__all__ = [
    "UNKNOWN_ROUTE",
    "AnswerObserver",
    "App",
    "Application",
    "Asked",
    "Client",
    "ClientLeftError",
    "ErrorAnswer",
    "ErrorForm",
    "Handler",
    "HttpCall",
    "HttpConnection",
    "HttpError",
    "HttpLimits",
    "HttpListener",
    "Message",
    "OpenConnections",
    "Receive",
    "RouteTable",
    "Routes",
    "Scope",
    "Send",
    "answer_json",
    "answer_whole",
    "encoded",
    "plain_error",
]
