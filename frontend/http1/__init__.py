"""How do bytes become HTTP/1.1 requests, and answers bytes? Connections of a server (httptools)."""

from .connection import App, HttpConnection, OpenConnections
from .exchange import Exchange
from .limits import HttpLimits

__all__ = ["App", "Exchange", "HttpConnection", "HttpLimits", "OpenConnections"]
