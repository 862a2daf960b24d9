"""Reload: settings read again while the router runs. All of a change takes effect, or none."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import structlog

from ...base.errors import ConfigError
from ...process.settings import Resolved, SettingsSource
from ...router.config import DYNAMO, DYNAMO_KNOBS
from ...router.disagg import DisaggConfig
from ...router.policy import LOWER_TIER_WEIGHTS
from ...workers.health_tracker import HealthPolicy
from ...workers.outliers import OutlierPolicy
from ..config import ServeConfig

ADMISSION = tuple(
    f"router.admission.{name}"
    for name in (
        "hold",
        "queue_threshold",
        "queue_limit",
        "max_requests_per_worker",
        "active_decode_blocks_threshold",
        "active_prefill_tokens_threshold",
        "active_prefill_tokens_threshold_frac",
    )
)
QUEUE = ADMISSION[:4]
"""These need the queue that a router has if requests could wait when it started."""
KNOBS = tuple(
    f"router.{name}" for name in (*DYNAMO_KNOBS, *LOWER_TIER_WEIGHTS, "router_temperature")
)
REQUESTS = (
    "max_attempts",
    "request_timeout_s",
    "limits.queue_timeout_s",
    "limits.attempt_timeout_s",
    "limits.write_timeout_s",
    "limits.total_timeout_s",
    "limits.stuck_timeout_s",
    "limits.hedge_after_s",
    "limits.retry_budget",
    "limits.retry_budget_least",
)
DISAGG = (
    *(field.name for field in fields(DisaggConfig)),
    "disagg_handoff",
    "max_local_prefill_length",
    "max_prefill_queue_size",
    "disagg_prefill_timeout_s",
    "disagg_handoff_timeout_s",
)
HEALTH = tuple(f"health.{field.name}" for field in fields(HealthPolicy))
OUTLIERS = tuple(f"outliers.{field.name}" for field in fields(OutlierPolicy))
LOG = ("log_level", "log_format")
STOP = ("drain_timeout_s", "lame_duck_s")
LIVE = frozenset(
    (
        "workers",
        "dns_refresh_s",
        *ADMISSION,
        *KNOBS,
        *REQUESTS,
        *DISAGG,
        *HEALTH,
        *OUTLIERS,
        *LOG,
        *STOP,
    )
)
"""The settings that can change while the router runs. Whatever is not here needs a restart."""

log = structlog.get_logger(__name__)


class Change(NamedTuple):
    """A setting with another value than before, both without secrets. Of a list: what is gone, and
    what is new."""

    key: str
    old: Any
    new: Any


def changes_of(old: Resolved[Any], new: Resolved[Any]) -> list[Change]:
    """What differs, in the order of the declarations."""
    before = {key: value for key, value, _ in old.describe()}
    return [
        _change(key, before[key], value)
        for key, value, _ in new.describe()
        if old.values[key] != new.values[key]
    ]


def changes_as_json(changes: Sequence[Change]) -> dict[str, Any]:
    """The body of POST /reload's answer."""
    return {"changed": {each.key: {"old": each.old, "new": each.new} for each in changes}}


def _change(key: str, old: Any, new: Any) -> Change:
    if isinstance(old, tuple) and isinstance(new, tuple):  # of a long list what differs
        gone, come = (tuple(v for v in a if v not in b) for a, b in ((old, new), (new, old)))
        return Change(key, gone, come)
    return Change(key, old, new)


def check_changes(
    changes: Sequence[Change], old: ServeConfig, new: ServeConfig, *, queues: bool
) -> None:
    """ConfigError, naming all of them, if some of these cannot change while the router runs.

    `queues`: it has a queue.
    """
    keys = [change.key for change in changes]
    fixed = [key for key in keys if key not in LIVE]
    if fixed:
        raise ConfigError(f"cannot change without a restart: {', '.join(fixed)}", key=fixed[0])
    if not queues and (needing := [key for key in keys if key in QUEUE]):
        text = "no request could wait at the start, so there is no queue"
        raise ConfigError(f"cannot change without a restart: {needing[0]}: {text}", key=needing[0])
    before, after = (config.router.policy_name for config in (old, new))
    if before != after and not (before.startswith(DYNAMO) and after.startswith(DYNAMO)):
        key = next(key for key in keys if key in KNOBS)
        text = f"the policy would be {after} in place of {before}"
        raise ConfigError(f"cannot change without a restart: {key}: {text}", key=key)


class Reloader:
    """Reads the settings again from where they came from, and has what changed applied.

    `check(changes, old, new)` raises ConfigError if it cannot be done; `apply(new, keys)` then does
    it, and does not fail.
    """

    def __init__(
        self,
        source: SettingsSource[Any],
        *,
        check: Callable[[Sequence[Change], ServeConfig, ServeConfig], None],
        apply: Callable[[ServeConfig, frozenset[str]], None],
    ) -> None:
        self._source = source
        self._check, self._apply = check, apply

    def reload(self) -> list[Change]:
        """What changed, and was applied. ConfigError, and everything as before, if it cannot be."""
        old = self._source.current
        try:
            new = self._source.read()
            changes = changes_of(old, new)
            self._check(changes, old.config, new.config)
        except ConfigError as error:
            log.error("configuration not reloaded, the old one stays", error=str(error))
            raise
        self._apply(new.config, frozenset(change.key for change in changes))
        self._source.current = new
        for change in changes:
            log.info("setting changed", key=change.key, old=change.old, new=change.new)
        log.info("configuration reloaded", changed=len(changes))
        return changes

    def on_signal(self) -> None:
        """Reload, whatever comes of it: it is in the log."""
        try:
            self.reload()
        except ConfigError:
            pass
        except Exception:
            log.exception("configuration not reloaded, the old one stays")
