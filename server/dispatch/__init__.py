"""A request's way through a worker and back: admission, attempts, retries, abort, accounting.

Entered by the services.
"""

from ._json_tokens import cut_messages
from .access_log import AccessLog, log_answer
from .dispatch import Dispatcher
from .generate_answer import usage_of
from .generate_request import GenerateFacts, ReadRequest
from .observers import DispatchObserver, OtherCall, OutputTracking
from .request import (
    NO_TRACE,
    Attempt,
    CallTrace,
    Put,
    Request,
    RequestTrace,
    Tracing,
    Write,
)
from .request_reader import (
    LONG_BYTES,
    MAX_DECODED_BYTES,
    MAX_JSON_PARTS,
    PROMPT_LIMIT,
    RequestReader,
)
from .retries import FailedAttempt
from .status import (
    HTTP_STATUSES,
    NO_WORKER,
    ClientGoneError,
    retry_after_s,
    retry_metadata,
    status_of,
)
