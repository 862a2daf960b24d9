"""CallLimits: how many calls there are at once, of whom, and of how many bytes."""

from collections.abc import Callable

from ...base.limit_hits import LimitHits
from ...workers.trtllm_proto import SERVICE
from ..caller_limits import CallerLimits

REQUESTS = frozenset(f"/{SERVICE}/{name}" for name in ("Generate", "Embed", "GetTokenizer"))
HEALTH = frozenset((f"/{SERVICE}/HealthCheck", "/grpc.health.v1.Health/Check"))


class SharedBound:
    """Counts an amount in use, of calls or bytes: at most `most` in all, `share` of it by a caller.

    What finds no room is counted in `hits` under `limit`, and under `limit`_per_caller if it is
    the caller's own share that has none. Memory is that of the callers that have something in use.
    """

    def __init__(self, limit: str, most: int, share: float, hits: LimitHits) -> None:
        self.limit = limit
        self.most = most
        self.most_each = max(1, int(most * share))
        self.used = 0
        self._hits = hits
        self._by_caller: dict[str, int] = {}

    def take(self, caller: str, amount: int = 1) -> str | None:
        """Take an amount into use; what stands in the way if there is no room, and nothing is
        taken."""
        refusal = self.refusal(caller, amount)
        if refusal is None:
            self._by_caller[caller] = self._by_caller.get(caller, 0) + amount
            self.used += amount
        return refusal

    def refusal(self, caller: str, amount: int = 1) -> str | None:
        """The same of an amount that would be given back before anything else is taken."""
        if self.used + amount > self.most:
            self._hits.hit(self.limit)
            return f"{self.limit}: all callers together may have {self.most}"
        if self._by_caller.get(caller, 0) + amount > self.most_each:
            self._hits.hit(f"{self.limit}_per_caller")
            return f"{self.limit}: one caller may have {self.most_each}"
        return None

    def give_back(self, caller: str, amount: int = 1) -> None:
        """An amount that was taken is no longer in use."""
        left = self._by_caller[caller] - amount
        assert left >= 0
        if left:
            self._by_caller[caller] = left
        else:
            del self._by_caller[caller]
        self.used -= amount

    def used_by(self, caller: str) -> int:
        return self._by_caller.get(caller, 0)


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
