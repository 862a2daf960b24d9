"""What a part of an answer says, out of its envelope: data, nothing, or that the request failed.

The envelope of Dynamo's endpoints is a map with `data`, `id`, `event`, `comment` and `error`, all
optional. Other maps, as those of its recovery endpoints, are data as they are.
"""

from typing import Any

from ..request_planes import Fault, RequestError

NOTHING = object()
"""A part without data: a comment, an event."""
_FIELDS = {"data", "id", "event", "comment", "error"}
_FAULTS = {
    "InvalidArgument": Fault.INVALID,
    "ResourceExhausted": Fault.OVERLOADED,
    "EngineShutdown": Fault.UNAVAILABLE,
}


def data_of(part: Any) -> Any:
    """The data, or NOTHING. RequestError if the part says that the request failed."""
    if not isinstance(part, dict) or not _FIELDS.issuperset(part):
        return part
    if part.get("event") == "error" or part.get("error") is not None:
        raise _failure(part)
    return part.get("data", NOTHING)


def _failure(part: dict[str, Any]) -> RequestError:
    error = part.get("error")
    kind: Any = error.get("error_type") if isinstance(error, dict) else None
    if isinstance(kind, dict):  # {"Backend": "EngineShutdown"}
        kind = next(iter(kind.values()), None)
    fault = _FAULTS.get(kind, Fault.FAILED) if isinstance(kind, str) else Fault.FAILED
    text = error.get("message") if isinstance(error, dict) else error
    if not isinstance(text, str):
        comment = part.get("comment")
        words = comment if isinstance(comment, list) else [comment]
        text = ", ".join(str(word) for word in words if word is not None)
    return RequestError(fault, text or "the worker reported a failure without a reason")
