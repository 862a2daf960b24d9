"""What goes wrong with a request, by who has to do something about it."""

from enum import Enum

from ...base.errors import WorkerError

UNAVAILABLE = "Server unavailable: "
OVERLOADED = "Server overloaded: "
"""How the refusals begin that a caller of Dynamo's understands. It hangs on any other."""


class Fault(Enum):
    """Why a request has no answer, or not all of it."""

    UNREACHABLE = "unreachable"  # the worker does not take connections
    UNAVAILABLE = "unavailable"  # it refuses: it is going, or does not know the endpoint
    OVERLOADED = "overloaded"
    SILENT = "silent"  # neither acknowledgement nor answer in time
    REFUSED = "refused"  # an error instead of an answer
    BROKEN = "broken"  # the answer ended before it was complete
    PROTOCOL = "protocol"  # it sends what no worker may
    INVALID = "invalid"  # the worker cannot take the request as it is
    FAILED = "failed"  # the worker tried, and says that it did not work
    TOO_LARGE = "too_large"  # ours: no frame can hold the request

    @property
    def not_begun(self) -> bool:
        """Whether the request has certainly not begun, so that another instance may have it."""
        return self in (Fault.UNREACHABLE, Fault.UNAVAILABLE, Fault.OVERLOADED)

    @property
    def down(self) -> bool:
        """Whether it speaks against the worker, not against the request."""
        sound = (Fault.OVERLOADED, Fault.INVALID, Fault.FAILED, Fault.TOO_LARGE)
        return self not in sound


class RequestError(WorkerError):
    """A request that did not get its answer, or not to its end. `public` is its text for clients,
    without addresses and names of the cluster; None: there is none but the message."""

    def __init__(
        self,
        fault: Fault,
        message: str,
        *,
        worker_id: int | None = None,
        public: str | None = None,
    ) -> None:
        super().__init__(message, worker_id=worker_id)
        self.fault, self.public = fault, public


def fault_of_refusal(text: str) -> Fault:
    """What the text of an acknowledgement means that is not empty."""
    if text.startswith(OVERLOADED.strip()):
        return Fault.OVERLOADED
    return Fault.UNAVAILABLE if text.startswith(UNAVAILABLE.strip()) else Fault.REFUSED
