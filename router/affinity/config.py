"""Settings of session affinity."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...process.settings import bad_setting, is_finite, option

AffinityMode = Literal["hard", "soft"]
AFFINITY_MODES: tuple[str, ...] = ("hard", "soft")
LONGEST_TTL_S = 31_536_000.0
"""A year, as in Dynamo."""


@dataclass(frozen=True, kw_only=True)
class AffinityConfig:
    """Whether requests of a session stay with a worker. Raises ConfigError, naming the key, on a
    bad value.
    """

    GROUP: ClassVar[str] = "Sessions"

    session_affinity_ttl_secs: float | None = option(
        None,
        "Requests of a session go to the worker that had the one before, if that was at most so"
        " long ago. Not given: sessions do not matter.",
        "--router-session-affinity-ttl-secs",
        env=("DYN_ROUTER_SESSION_AFFINITY_TTL_SECS",),
        short=True,
    )
    session_affinity_mode: AffinityMode = option(
        "hard",
        "hard: a session stays with its worker while that takes requests; soft: its worker costs"
        " less than it would, and another one may cost still less.",
        "--router-session-affinity-mode",
        env=("DYN_ROUTER_SESSION_AFFINITY_MODE",),
        choices=AFFINITY_MODES,
    )
    session_affinity_discount: float = option(
        0.5,
        "With soft: the part of its cost that a session's worker is let off, 0 to 1.",
        "--router-session-affinity-discount",
    )
    session_retention_secs: float | None = option(
        None,
        "Seconds for which engines are asked to retain the KV blocks of a session's request; those"
        " of its last request they may drop at once. Not given: no such hint.",
        "--router-session-retention-secs",
    )
    max_sessions: int = option(
        65_536,
        "Most sessions remembered; beyond, those of use longest ago are forgotten. One caller has"
        " at most half of them.",
        "--router-max-sessions",
    )

    def __post_init__(self) -> None:
        ttl = self.session_affinity_ttl_secs
        if ttl is not None and not (is_finite(ttl) and 1 <= ttl <= LONGEST_TTL_S):
            text = f"{ttl!r} is not in 1..{LONGEST_TTL_S:.0f}"
            raise bad_setting("session_affinity_ttl_secs", text)
        kept = self.session_retention_secs
        if kept is not None and not (is_finite(kept) and 0 < kept <= LONGEST_TTL_S):
            text = f"{kept!r} is not above 0 and at most {LONGEST_TTL_S:.0f}"
            raise bad_setting("session_retention_secs", text)
        if self.session_affinity_mode not in AFFINITY_MODES:
            text = f"{self.session_affinity_mode!r} is not one of {', '.join(AFFINITY_MODES)}"
            raise bad_setting("session_affinity_mode", text)
        discount = self.session_affinity_discount
        if not (is_finite(discount) and 0 <= discount <= 1):
            raise bad_setting("session_affinity_discount", f"{discount!r} is not in 0..1")
        if self.max_sessions < 2:
            raise bad_setting("max_sessions", f"{self.max_sessions!r} must be at least 2")
