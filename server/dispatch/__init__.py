"""A request's way through a worker and back: admission, attempts, retries, abort, accounting.

Entered by the services.
"""

from .attempts import Attempt
from .decisions import (
    Bookings,
    Decisions,
    RouterDecisions,
    admission_of,
    queue_of,
    ticket_of,
)
from .dispatch import Dispatcher
from .generate_answer import told_usage
from .generate_request import GenerateFacts, ReadRequest
from .observers import AccessLog, DispatchObserver, OutputTracking
from .reply import Put, Write
from .request import CallTrace, Flight, NoTrace, RequestTrace, Tracing
from .request_reader import LONG_BYTES, MAX_DECODED_BYTES, RequestReader
from .status import ClientGoneError, status_of

__all__ = [
    "AccessLog",
    "Decisions",
    "Attempt",
    "Bookings",
    "CallTrace",
    "ClientGoneError",
    "DispatchObserver",
    "Dispatcher",
    "Flight",
    "GenerateFacts",
    "LONG_BYTES",
    "MAX_DECODED_BYTES",
    "NoTrace",
    "OutputTracking",
    "Put",
    "ReadRequest",
    "RequestReader",
    "RequestTrace",
    "RouterDecisions",
    "Tracing",
    "Write",
    "admission_of",
    "queue_of",
    "status_of",
    "ticket_of",
    "told_usage",
]
