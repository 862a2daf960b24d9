"""A request's way through a worker and back: admission, attempts, retries, abort, accounting.

Entered by the services.
"""

from .dispatch import Dispatcher
from .generate_answer import told_usage
from .generate_request import GenerateFacts, ReadRequest
from .observers import AccessLog, DispatchObserver, OutputTracking
from .request import Attempt, CallTrace, NoTrace, Put, Request, RequestTrace, Tracing, Write
from .request_reader import (
    LONG_BYTES,
    MAX_DECODED_BYTES,
    MAX_JSON_PARTS,
    PROMPT_LIMIT,
    RequestReader,
)
from .retries import FailedAttempt
from .status import ClientGoneError, status_of
