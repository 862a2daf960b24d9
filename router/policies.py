"""The policies of mode kv by name: ours, and those that installed packages or callers bring.

A package offers one under its entry point group `dynamo_router.policies`: a function from the
router's settings to a Policy. examples/custom_policy.py shows both ways to use it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, cast

from ..base.clock import Clock
from ..base.errors import ConfigError
from ..indexer.event_index import EventIndex
from ._plain_decisions import PlainDecisions
from .admission import LoadLimits
from .candidates import CandidateSource
from .config import DYNAMO, DYNAMO_KNOBS, FORECAST, KvRouterConfig, default_of
from .policy import (
    MODES,
    BothLearn,
    DynamoCost,
    ForecastParams,
    ForecastPolicy,
    GuardedPolicy,
    Mode,
    Policy,
    Shadow,
    mode_policy,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

GROUP = "dynamo_router.policies"


def offered() -> "EntryPoints":
    """The policies of installed packages."""
    from importlib.metadata import entry_points  # 56 modules, which only these policies need

    return entry_points(group=GROUP)


def known_policies() -> list[str]:
    """What `policy` can be: ours first, then those of installed packages by name."""
    others = sorted({point.name for point in offered()})
    return [FORECAST, DYNAMO, f"{DYNAMO}:SCALE", *others]


def new_policy(config: KvRouterConfig) -> Policy:
    """The policy that these settings ask for, to be kept by one router.

    Raises ConfigError for an unknown policy, or one that cannot be made.
    """
    if config.mode != "kv":
        return mode_policy(config.mode)
    name = config.policy_name
    if name == FORECAST:
        params = ForecastParams(itl_objective_s=config.admission.itl_objective_ms / 1e3)
        return ForecastPolicy(config.router_temperature, params)
    if name.partition(":")[0] == DYNAMO:
        return _dynamo(config)
    for point in offered():
        if point.name == name:
            return guarded(_load(point, config), name, config)
    raise ConfigError(f"policy: {name!r} is none of {', '.join(known_policies())}", key="policy")


def guarded(policy: Policy, name: str, config: KvRouterConfig) -> Policy:
    """An installed policy, with Dynamo's cost to fall back on."""
    return GuardedPolicy(policy, name, _dynamo(config))


def new_shadow(config: KvRouterConfig) -> Shadow | None:
    """The policy that these settings have compared, if any; see KvRouterConfig.shadow_policy.

    Raises ConfigError as `new_policy`.
    """
    name = config.shadow_policy
    if name is None:
        return None
    rng = Random(config.seed)  # of its own: what serves draws as without it
    plain = replace(config, shadow_policy=None, **{key: default_of(key) for key in DYNAMO_KNOBS})
    if name != "kv" and name in MODES:
        return Shadow(name, mode_policy(cast(Mode, name)), rng)
    try:
        return Shadow(name, new_policy(replace(plain, policy=name)), rng)
    except ConfigError as error:
        known = ", ".join((*known_policies(), *(mode for mode in MODES if mode != "kv")))
        text = f"shadow_policy: {name!r} is none of {known}, or cannot be made: {error}"
        raise ConfigError(text, key="shadow_policy") from None


class PolicyChoice:
    """The policy that decides for a router, and what a request's own settings make of it.

    `given` is one that the caller brought; else the settings say which.
    """

    def __init__(self, config: KvRouterConfig, given: Policy | None = None) -> None:
        self._config = config
        self._given = given is not None
        if given is None:
            self.policy = new_policy(config)
        elif not isinstance(given, Policy):
            raise ConfigError(f"strategy: {given!r} is no Policy", key="strategy")
        else:
            self.policy = guarded(given, type(given).__name__, config)
        self.shadow = shadow = new_shadow(config)
        self.learner: Policy = self.policy if self.policy.learns else Policy()
        """learns what becomes of requests"""
        if shadow is not None:
            self.learner = BothLearn(self.learner, shadow.policy)

    def change(self, config: KvRouterConfig) -> None:
        """Use other weights and another temperature; the kind of policy stays what it is."""
        self._config = config
        if isinstance(self.policy, DynamoCost):
            self.policy = new_policy(config)
        elif isinstance(self.policy, ForecastPolicy):
            self.policy.temperature = config.router_temperature

    @property
    def failures(self) -> int:
        """How often a policy that is not ours has raised, or answered nonsense."""
        return self.policy.failures if isinstance(self.policy, GuardedPolicy) else 0

    @property
    def slow(self) -> int:
        """How many decisions of a policy that is not ours took longer than SLOW_S."""
        return self.policy.slow if isinstance(self.policy, GuardedPolicy) else 0

    def of_request(
        self, overrides: Mapping[str, Any] | None
    ) -> tuple[KvRouterConfig, Policy, float | None]:
        """(settings, policy, temperature) for one request; no temperature: the policy's own.

        Raises ConfigError for a bad setting, or for another policy that learns from its requests.
        """
        if not overrides:
            return self._config, self.policy, None
        ours = self._config
        try:
            config = replace(ours, **overrides)
        except TypeError:
            raise ConfigError(f"overrides: unknown key among {', '.join(overrides)}") from None
        if config.policy_name != ours.policy_name:
            policy = new_policy(config)
            if policy.learns:
                raise ConfigError(
                    f"overrides: {config.policy_name!r} learns from what it sends; a router has"
                    " it from the start, or not at all",
                    key="policy",
                )
            return config, policy, None
        if config.mode != "kv":
            return config, self.policy, None
        if not (self.policy.learns or self._given):
            return config, new_policy(config), None
        temperature = config.router_temperature
        return config, self.policy, None if temperature == ours.router_temperature else temperature


def _dynamo(config: KvRouterConfig) -> Policy:
    return DynamoCost(config.cost_params, config.router_temperature)


def _load(point: "EntryPoint", config: KvRouterConfig) -> Policy:
    try:
        made = point.load()(config)
    except Exception as error:
        raise ConfigError(
            f"policy: {point.name!r} ({point.value}) cannot be made: "
            f"{type(error).__name__}: {error}",
            key="policy",
        ) from error
    if not isinstance(made, Policy):
        raise ConfigError(
            f"policy: {point.name!r} ({point.value}) made {made!r}, which is no Policy",
            key="policy",
        )
    return made


def plain_decisions(
    source: CandidateSource,
    choice: PolicyChoice,
    limits: LoadLimits,
    lock: AbstractContextManager[object],
    clock: Clock,
    expire: Callable[[], float],
    rng: Random,
) -> PlainDecisions | None:
    """What decides most requests of a router in one step; None where settings give something else a
    say."""
    config, policy, index = source.config, choice.policy, source.index
    if type(policy) is not ForecastPolicy or choice.learner is not policy or choice.shadow:
        return None
    tracks = config.router_track_active_blocks and config.router_track_prefill_tokens
    if not (isinstance(index, EventIndex) and tracks and config.router_assume_kv_reuse):
        return None
    return PlainDecisions(lock, clock, expire, source, limits, policy, rng)
