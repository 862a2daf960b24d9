"""Settings of disaggregated prefill and decode: the mode, and which policy decides how."""

from dataclasses import dataclass
from typing import ClassVar

from ...process.setting_checks import require_at_least, require_positive
from ...process.settings import bad_setting, is_finite, option

DISAGG_MODES = ("off", "always", "conditional")
DISAGG_POLICIES = ("forecast", "isl_bounding", "prefill_load", "isl_or_load", "noncached")


@dataclass(frozen=True, kw_only=True)
class DisaggConfig:
    """Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Prefill and decode workers"

    disagg: str = option(
        "conditional",
        "With prefill and decode workers: off (every engine computes whole requests), always"
        " (prefill workers compute every prompt) or conditional (a policy decides for each).",
        choices=DISAGG_MODES,
    )
    disagg_policy: str = option(
        "forecast",
        "With --disagg conditional: forecast (the shorter predicted time), isl_bounding,"
        " prefill_load or isl_or_load (Dynamo's), noncached (llm-d's).",
        choices=DISAGG_POLICIES,
    )
    disagg_eff_isl_threshold: int = option(
        2048,
        "isl_bounding, isl_or_load: the decode worker computes a prompt of which it has fewer"
        " tokens than this to compute, and less than the ratio below.",
    )
    disagg_eff_isl_ratio_threshold: float = option(
        0.7, "The same as a share of the prompt; both must hold."
    )
    disagg_prefill_busy_threshold: float | None = option(
        None,
        "prefill_load, isl_or_load: the decode worker computes while every prefill worker has more"
        " than this many times its batch budget in prompt tokens. Not given: the router's queue"
        " threshold; without that, never.",
    )
    disagg_decode_busy_threshold: float | None = option(
        None,
        "Dynamo's policies: no local prefill where the request would bring the decode worker above"
        " this share of its KV blocks, 0 to 1.",
    )
    disagg_noncached_tokens: int = option(
        0,
        "noncached: a prefill worker computes prompts of which the decode worker has at least this"
        " many tokens to compute; 0: none.",
    )

    disagg_itl_ms: float = option(
        14.0,
        "forecast: time for a token from which on answers count as held up where prompts are"
        " computed beside them, in milliseconds.",
    )

    def __post_init__(self) -> None:
        for key, known in (("disagg", DISAGG_MODES), ("disagg_policy", DISAGG_POLICIES)):
            if getattr(self, key) not in known:
                raise bad_setting(key, f"{getattr(self, key)!r} is not one of {', '.join(known)}")
        require_at_least(self, 0, "disagg_eff_isl_threshold", "disagg_noncached_tokens")
        require_positive(self, "disagg_itl_ms")
        for key, most in (
            ("disagg_eff_isl_ratio_threshold", 1.0),
            ("disagg_prefill_busy_threshold", None),
            ("disagg_decode_busy_threshold", 1.0),
        ):
            value = getattr(self, key)
            if value is None:
                continue
            if not (is_finite(value) and value >= 0 and (most is None or value <= most)):
                limit = "finite and at least 0" if most is None else "from 0 to 1"
                raise bad_setting(key, f"{value!r} must be {limit}")
