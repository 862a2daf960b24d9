"""A request's way through a worker and back: admission, attempts, retries, abort, accounting.

Entered by the services.
"""

from .dispatch import Dispatcher
from .generate_answer import told_usage
from .generate_request import GenerateFacts, ReadRequest
from .observers import AccessLog, DispatchObserver, OutputTracking
from .request import Attempt, CallTrace, NoTrace, Put, Request, RequestTrace, Tracing, Write
from .request_reader import LONG_BYTES, MAX_DECODED_BYTES, RequestReader
from .retries import FailedAttempt
from .status import ClientGoneError, status_of

__all__ = [
    "AccessLog",
    "Attempt",
    "CallTrace",
    "ClientGoneError",
    "DispatchObserver",
    "Dispatcher",
    "FailedAttempt",
    "GenerateFacts",
    "LONG_BYTES",
    "MAX_DECODED_BYTES",
    "NoTrace",
    "OutputTracking",
    "Put",
    "ReadRequest",
    "Request",
    "RequestReader",
    "RequestTrace",
    "Tracing",
    "Write",
    "status_of",
    "told_usage",
]
