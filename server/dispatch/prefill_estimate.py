"""How long a prompt's prefill takes, for requests whose answer does not show its end. Pure."""

KNOWN_BY = 0.1  # weight of the newest first token
STEP_S = 0.02  # before anything was observed: of a step,
TOKEN_S = 5e-5  # and of each prompt token in it
TINY_TOKENS = 64
RELEASE_FACTOR = 8.0  # times the estimate, and
RELEASE_AFTER_S = 10.0  # this much more


class PrefillEstimate:
    """Learns seconds per prompt token from the first tokens of streams, and from whole answers.

    First tokens include an engine's own queue, so that the estimate errs towards a prefill that
    lasts; no prefill lasts longer than the whole answer.
    """

    def __init__(self) -> None:
        self.token_s = TOKEN_S
        self.step_s = STEP_S
        self._ends: dict[int, float] = {}  # when each worker is through with what it was given

    def observe(self, tokens: int, seconds: float) -> None:
        """A stream that had `tokens` to compute began to answer `seconds` after it was sent."""
        if tokens <= TINY_TOKENS:  # mostly a step: shows nothing of a token
            self.step_s += KNOWN_BY * (seconds - self.step_s)
            return
        per_token = max(0.0, seconds - self.step_s) / tokens
        self.token_s += KNOWN_BY * (per_token - self.token_s)

    def observe_whole(self, tokens: int, seconds: float) -> None:
        """A whole answer to a prompt with `tokens` to compute took no longer than `seconds`."""
        if seconds < self.seconds(tokens):
            self.step_s = min(self.step_s, seconds)
            self.token_s = max(0.0, seconds - self.step_s) / max(1, tokens)

    def seconds(self, tokens: int) -> float:
        """How long a prompt with `tokens` to compute is expected to take."""
        return self.step_s + tokens * self.token_s

    def end_of(self, worker_id: int, tokens: int, now: float) -> float:
        """When a worker that is given this prompt now will have computed it, one after another."""
        end = max(now, self._ends.get(worker_id, now)) + self.seconds(tokens)
        self._ends[worker_id] = end
        return end

    def forget(self, now: float) -> None:
        """Drop the workers that are through."""
        self._ends = {worker: end for worker, end in self._ends.items() if end > now}

    def release_after_s(self, tokens: int) -> float:
        """How long the prompt of a stream without a first token counts as not computed yet.

        An engine that hangs is not to be waited for by all.
        """
        return RELEASE_AFTER_S + RELEASE_FACTOR * self.seconds(tokens)
