"""How do bytes become HTTP/1.1 requests, and answers bytes? Connections of a server (httptools)."""

from .connection import App, HttpConnection, HttpLimits, OpenConnections
from .exchange import Exchange

__all__ = ["App", "Exchange", "HttpConnection", "HttpLimits", "OpenConnections"]
