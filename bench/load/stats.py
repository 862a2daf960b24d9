"""What the requests of one replay came to, added up as their answers end."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..results import Goodput, Run, summarise

Judge = Callable[[int, list[float], list[float], list[int]], Goodput]
"""Goodput by requests sent, and of those served: TTFTs and own mean ITLs in ms, prompt lengths."""


@dataclass(slots=True)
class Outcome:
    """How one request went. Times in ms from the call; `code` is "OK" or what went wrong.

    Codes are gRPC's, and these, which are ours: INCOMPLETE (the stream ended without its final
    message), WRONG_LENGTH (not as many tokens as asked for), TOKEN_MISMATCH (the final message
    contradicts the stream), UNDECODABLE, ENGINE_ERROR (finish reason "error").
    """

    code: str = "OK"
    rejected: bool = False
    reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: float | None = None
    e2e_ms: float = 0.0
    worker: str | None = None
    # One a token after the first: time since the previous message over the message's tokens.
    itl_ms: list[float] = field(default_factory=list)


class LoadStats:
    """Outcomes so far. `late_ms` and `held_back` show whether the load was the one asked for."""

    def __init__(self) -> None:
        self.done = 0
        self.rejected = 0
        self.codes: Counter[str] = Counter()
        self.first_failure = ""
        self.held_back = 0
        self.late_ms: list[float] = []
        self._input = self._output = self._cached = 0
        self._ttft: list[float] = []
        self._e2e: list[float] = []
        self._itl: list[NDArray[np.float32]] = []
        self._worker_input: Counter[str] = Counter()
        self._served: list[tuple[float, float, int]] = []  # TTFT, own mean ITL, prompt tokens

    @property
    def failed(self) -> int:
        return sum(self.codes.values())

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        if outcome.code != "OK":
            self.first_failure = self.first_failure or f"{outcome.code}: {outcome.reason}"
            if outcome.rejected:
                self.rejected += 1
            else:
                self.codes[outcome.code] += 1
            return
        self._input += outcome.input_tokens
        self._output += outcome.output_tokens
        self._cached += outcome.cached_tokens
        self._e2e.append(outcome.e2e_ms)
        if outcome.ttft_ms is not None:
            self._ttft.append(outcome.ttft_ms)
            between = max(1, outcome.output_tokens - 1)
            own_itl = (outcome.e2e_ms - outcome.ttft_ms) / between
            self._served.append((outcome.ttft_ms, own_itl, outcome.input_tokens))
        self._itl.append(np.array(outcome.itl_ms, np.float32))
        if outcome.worker is not None:
            self._worker_input[outcome.worker] += outcome.input_tokens

    def run(
        self,
        wall_s: float,
        *,
        mode: str = "unknown",
        policy: str = "unknown",
        workers: int | None = None,
        seed: int | None = None,
        details: Mapping[str, Any] | None = None,
        judge: Judge | None = None,
    ) -> Run:
        """The result. A worker that got nothing counts in the balance if `workers` is given."""
        ttft, own_itl = ([row[i] for row in self._served] for i in range(2))
        prompt = [row[2] for row in self._served]
        shares = list(self._worker_input.values())
        count = max(workers or 0, len(shares))
        balance = max(shares) * count / sum(shares) if shares else None
        return Run(
            mode=mode,
            policy=policy,
            workers=workers,
            seed=seed,
            requests=self.done,
            errors=self.failed,
            rejected=self.rejected,
            cached_token_share=self._cached / self._input if self._input else None,
            ttft_ms=summarise(self._ttft),
            itl_ms=summarise(np.concatenate(self._itl) if self._itl else []),
            e2e_ms=summarise(self._e2e),
            output_tokens_per_s=self._output / wall_s if wall_s > 0 else None,
            balance_max_over_mean=balance,
            wall_s=wall_s,
            goodput=judge(self.done, ttft, own_itl, prompt) if judge else Goodput(),
            details={
                **(details or {}),
                "errors_by_code": dict(self.codes),
                "first_failure": self.first_failure or None,
                "input_tokens": self._input,
                "output_tokens": self._output,
                "cached_tokens": self._cached,
                "workers_seen": len(shares),
                # Whether the load was the one asked for, and not limited by this client.
                "sent_late_ms": asdict(summarise(self.late_ms)),
                "held_back": self.held_back,
            },
        )
