"""How generated traffic differs from what was learned: multipliers and limits."""

from dataclasses import dataclass

from ...base.errors import ConfigError
from ...process.setting_checks import require_at_least, require_positive
from ...process.settings import bad_setting

# This many draws in a row that fit no limit, and there is nothing to wait for.
MAX_REJECTED = 20_000


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Multipliers, 1 being as learned, and limits in tokens. ConfigError on a bad value.

    `prefix_len` stretches what prompts share and `prompt_len` the rest of them; `prefix_root` makes
    that many families that share nothing; `speedup` divides all times. `pause` stretches the time
    from a turn to those that follow it, while requests come as often as before: fewer sessions are
    under way at a time, or more. A prompt outside of its limits is drawn again; an output is cut to
    them.
    """

    prefix_len_multiplier: float = 1.0
    prefix_root_multiplier: int = 1
    prompt_len_multiplier: float = 1.0
    osl_multiplier: float = 1.0
    pause_multiplier: float = 1.0
    speedup_ratio: float = 1.0
    min_isl: int | None = None
    max_isl: int | None = None
    min_osl: int | None = None
    max_osl: int | None = None

    def __post_init__(self) -> None:
        require_positive(
            self,
            "prefix_len_multiplier",
            "prompt_len_multiplier",
            "osl_multiplier",
            "pause_multiplier",
            "speedup_ratio",
        )
        if not 1 <= self.prefix_root_multiplier <= 2**20:
            raise bad_setting(
                "prefix_root_multiplier", f"{self.prefix_root_multiplier} must be from 1 to 2**20"
            )
        for low, high, least in (("min_isl", "max_isl", 1), ("min_osl", "max_osl", 0)):
            require_at_least(self, least, low, high)
            floor, ceiling = getattr(self, low), getattr(self, high)
            if floor is not None and ceiling is not None and floor > ceiling:
                raise bad_setting(low, f"{floor} must not be above {high}, {ceiling}")

    def fits(self, input_length: int) -> bool:
        """Whether a prompt of this length is within the limits."""
        return (self.min_isl is None or input_length >= self.min_isl) and (
            self.max_isl is None or input_length <= self.max_isl
        )

    def output_length(self, learned: int, dither: float) -> int:
        """The output for a learned one; `dither` (0 to 1) keeps fractions right on average."""
        length = int(learned * self.osl_multiplier + dither)
        if self.min_osl is not None:
            length = max(length, self.min_osl)
        return length if self.max_osl is None else min(length, self.max_osl)

    def leaf_tokens(self, learned: int) -> int:
        """The tokens of a prompt's own end, at least one, for a learned number of at least one."""
        return max(1, int(learned * self.prompt_len_multiplier + 0.5))

    def timestamp(self, learned_ms: float) -> int | float:
        """The time to write, in ms: whole where it is whole, else to the microsecond."""
        scaled = learned_ms / self.speedup_ratio
        whole = int(scaled)
        if scaled == whole:
            return whole
        scaled = round(scaled, 3)
        return int(scaled) if scaled == int(scaled) else scaled

    def nothing_fits(self) -> ConfigError:
        """What to raise after MAX_REJECTED draws in a row outside of the limits."""
        key = "min_isl" if self.max_isl is None else "max_isl"
        limits = f"min_isl {self.min_isl}, max_isl {self.max_isl}"
        return bad_setting(
            key, f"no prompt of {MAX_REJECTED} drawn in a row is within the limits ({limits})"
        )


class FreshIds:
    """Hands out block ids that were never used before, from 0."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, count: int) -> range:
        """The next `count` ids."""
        start = self.used
        self.used = start + count
        return range(start, self.used)
