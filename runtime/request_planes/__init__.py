"""How do processes call each other? Requests and answers in parts, as Dynamo's processes do it."""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .answer import Answer, AnswerListener, AnswerTimeouts
from .answer_queue import AnswerQueue
from .answer_writer import Handler, RequestContext, annotated, end_parts
from .faults import Fault, RequestError
from .nats_service import NatsService, service_name
from .request_client import Carrier, RequestClient
from .request_server import RequestServer
from .response_reader import part_decoders

if TYPE_CHECKING:
    from .nats_carrier import NatsCarrier

__all__ = [
    "Answer",
    "AnswerListener",
    "AnswerQueue",
    "AnswerTimeouts",
    "Carrier",
    "Fault",
    "Handler",
    "NatsCarrier",
    "NatsService",
    "RequestClient",
    "RequestContext",
    "RequestError",
    "RequestServer",
    "annotated",
    "end_parts",
    "part_decoders",
    "service_name",
]

# The client of NATS is imported by its first user.
__getattr__ = lazy_names(__name__, {"NatsCarrier": ".nats_carrier"})
