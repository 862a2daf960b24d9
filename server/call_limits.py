"""CallLimits: how many calls there are at once, of whom, and of how many bytes."""

from collections.abc import Callable

from ..base.limit_hits import LimitHits
from ..base.shared_bound import SharedBound
from ..process.loop_turns import LoopTurns
from ..workers.trtllm_proto import SERVICE
from .caller_limits import CallerLimits

PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"
"""The service by which Envoy asks where each request goes: a call is a request of a client's."""
REQUESTS = frozenset(
    (
        *(f"/{SERVICE}/{name}" for name in ("Generate", "Embed", "GetTokenizer")),
        f"/{PROCESSOR}/Process",
    )
)
HEALTH = frozenset((f"/{SERVICE}/HealthCheck", "/grpc.health.v1.Health/Check"))


class CallLimits:
    """Bounds calls and bytes, of all callers and of each. Requests, questions about health and all
    other questions have room of their own: none of them keeps the others out.
    """

    def __init__(self, limits: CallerLimits, hits: LimitHits) -> None:
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
        self.turns = LoopTurns()
        """what requests begin in one turn of the event loop"""
        self.on_request_refused: Callable[[], None] = lambda: None
        """called for each request that found no room"""

    def refused(self) -> None:
        """A request found no room."""
        self.on_request_refused()

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
