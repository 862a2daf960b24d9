"""CallLimits: how many calls there are at once, of whom, and of how many bytes."""

from collections.abc import Callable

from ...base.limit_hits import LimitHits
from ...base.shared_bound import SharedBound
from ...workers.trtllm_proto import SERVICE
from ..caller_limits import CallerLimits

REQUESTS = frozenset(f"/{SERVICE}/{name}" for name in ("Generate", "Embed", "GetTokenizer"))
HEALTH = frozenset((f"/{SERVICE}/HealthCheck", "/grpc.health.v1.Health/Check"))


class CallLimits:
    """Bounds calls and bytes, of all callers and of each. Requests, questions about health and all
    other questions have room of their own: none of them keeps the others out.

    `on_request_refused` hears of each request that found none.
    """

    def __init__(
        self,
        limits: CallerLimits,
        hits: LimitHits,
        on_request_refused: Callable[[], None] = lambda: None,
    ) -> None:
        share = limits.max_share_per_caller
        self.limits = limits
        self.hits = hits
        self.message_timeout_s = limits.message_timeout_s
        self.max_metadata_bytes = limits.max_metadata_bytes
        self.requests = SharedBound("max_requests", limits.max_requests, share, hits)
        self.questions = SharedBound("max_questions", limits.max_questions, share, hits)
        self.health = SharedBound("max_questions", limits.max_questions, share, hits)
        self.bytes = SharedBound("max_request_bytes", limits.max_request_bytes, share, hits)
        self.answer_bytes = SharedBound("max_answer_bytes", limits.max_answer_bytes, share, hits)
        self.on_request_refused = on_request_refused

    def take_request(self, caller: str, size: int) -> str | None:
        """Count a request of `size` bytes until it is given back; what stands in the way if there
        is no capacity for it, and nothing counts."""
        refusal = self.requests.take(caller)
        if refusal is None and size:
            refusal = self.bytes.take(caller, size)
            if refusal is not None:
                self.requests.give_back(caller)
        if refusal is not None:
            self.on_request_refused()
        return refusal

    def give_back_request(self, caller: str, size: int) -> None:
        """A request that was taken has ended."""
        self.requests.give_back(caller)
        if size:
            self.bytes.give_back(caller, size)

    def open_calls(self) -> dict[str, int]:
        """How many there are, by what they ask for."""
        return {
            "requests": self.requests.used,
            "questions": self.questions.used,
            "health": self.health.used,
        }

    def bound_of(self, method: str) -> SharedBound:
        """What a method's calls are counted by."""
        if method in REQUESTS:
            return self.requests
        return self.health if method in HEALTH else self.questions
