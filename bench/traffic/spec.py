"""The parameters of generated traffic: what sessions are like, and how they come."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Sessions open `factor` times as often during the first `on_s` of every `period_s`.

    The mean rate stays: between bursts they open less often.
    """

    factor: float
    on_s: float
    period_s: float

    def __post_init__(self) -> None:
        if not (self.factor > 1 and 0 < self.on_s < self.period_s):
            raise ValueError(f"bursts need a factor above 1 and 0 < on_s < period_s: {self}")
        if self.factor * self.on_s > self.period_s:
            raise ValueError(f"bursts hold more than all requests: {self}")


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """Passages that a prompt takes from a store, in any order, behind its shared beginning.

    Each session draws `taken` different ones of `pool`, the k-th most popular with a weight of
    k ** -popularity. A passage is `tokens` long, of full blocks.
    """

    pool: int
    popularity: float
    taken: int
    tokens: int

    def __post_init__(self) -> None:
        if not (0 < self.taken <= self.pool and self.tokens > 0):
            raise ValueError(f"chunks are at least one of the pool, of at least a token: {self}")


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Batch jobs beside the sessions: `share` of all requests, `requests` at one instant in the
    mean (geometric), with one beginning, each of one turn of its own lengths."""

    share: float
    requests: float
    user_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if not (0 < self.share < 1 and self.requests >= 1):
            raise ValueError(f"jobs need a share between 0 and 1 and at least a request: {self}")
        if not (self.user_tokens > 0 and self.output_tokens > 0):
            raise ValueError(f"jobs have prompts and answers: {self}")


@dataclass(frozen=True, kw_only=True)
class TrafficSpec:
    """One kind of traffic. Lengths are means in tokens, times means in seconds.

    A session begins with one of `prefixes` shared beginnings (a system prompt, a tool list, a
    document), the k-th most popular drawn with a weight of k ** -popularity; their lengths are
    lognormal. It has a geometric number of turns. Each adds `user_tokens` to the prompt, and gets
    `output_tokens`; lognormal with the given spreads (the standard deviation of the logarithm).
    With `history` a turn repeats the whole session before it, the answers included; without, only
    the shared beginning. After an answer the next turn waits `pause_s` (lognormal, `pause_spread`).
    With the chance `forks` a turn starts a side session that carries on from its prompt, too.
    `job_requests` sessions open together, with the same beginning: 1, or batches of a geometric
    size of that mean. With `chunks` a prompt takes passages of a store behind its beginning; `jobs`
    are batches beside the sessions. Every `drift_s` each beginning takes the popularity of the one
    before it: what was asked for most is then asked for least. Turns whose prompt would be longer
    than `max_prompt_tokens` end the session.

    `rate` are requests a second for each worker, at load 1.
    """

    family: str
    rate: float
    prefixes: int
    popularity: float
    prefix_tokens: int
    prefix_spread: float
    turns: float
    user_tokens: int
    user_spread: float
    output_tokens: int
    output_spread: float
    pause_s: float
    pause_spread: float
    history: bool = True
    forks: float = 0.0
    job_requests: float = 1.0
    bursts: Bursts | None = None
    chunks: Chunks | None = None
    jobs: Jobs | None = None
    drift_s: float = 0.0
    max_prompt_tokens: int = 32_768

    def __post_init__(self) -> None:
        for name in ("rate", "prefixes", "prefix_tokens", "user_tokens", "output_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{self.family}: {name} must be greater than 0")
        for name in ("turns", "job_requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.family}: {name} must be at least 1")
        if not 0 <= self.forks * self.turns < 1:
            raise ValueError(f"{self.family}: side sessions must die out")
        if self.drift_s < 0:
            raise ValueError(f"{self.family}: drift_s must be at least 0")

    def parameters(self) -> dict[str, object]:
        """How this kind differs from another of its family, by name; switches are left out."""
        skipped = ("family", "history", "max_prompt_tokens")
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in skipped and getattr(self, each.name) != each.default
        }
