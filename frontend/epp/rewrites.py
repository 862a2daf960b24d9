"""Other names that InferenceModelRewrites give the models which requests name. No I/O.

Sources: InferenceModelRewrite of llm-d.ai/v1alpha2 and of inference.networking.x-k8s.io/v1alpha2.
"""

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from .pool_objects import PoolObjects
from .requests import LONGEST_NAME

MOST_RULES = 1000
"""Rules, matches and targets of one object."""
_MOST_WEIGHT = 1_000_000


class Rule(NamedTuple):
    """`models`: those that it is for; None: all."""

    models: frozenset[str] | None
    targets: tuple[str, ...]
    weights: tuple[int, ...]


class Rewrite(NamedTuple):
    """What is kept of one object. Older ones go before others, rules in their order."""

    created: str
    name: str
    rules: tuple[Rule, ...]


class RewriteView(PoolObjects[Rewrite]):
    """Of one pool; None: of every pool of the namespace."""

    def __init__(self, pool: str | None, rng: random.Random | None = None) -> None:
        super().__init__("InferenceModelRewrite", pool, read_rewrite)
        self._rng = rng or random.Random()
        self._exact: dict[str, Rule] = {}
        self._general: Rule | None = None

    def target(self, model: str) -> str | None:
        """The name to put in place of this one, drawn by weight; None: no rule is for it.

        A rule that names the model goes before one for all models.
        """
        rule = self._exact.get(model, self._general)
        if rule is None:
            return None
        return self._rng.choices(rule.targets, rule.weights)[0]

    def settle(self) -> None:
        exact, self._general = dict[str, Rule](), None
        for rewrite in sorted(self.each()):
            for rule in rewrite.rules:
                if rule.models is None:
                    self._general = self._general or rule
                else:
                    for model in rule.models:
                        exact.setdefault(model, rule)
        self._exact = exact


def read_rewrite(found: Any) -> Rewrite:
    """ValueError if it cannot be read as a whole: half of its rules would do something else."""
    metadata, rules = found["metadata"], _list(found.get("spec"), "rules")
    created = metadata.get("creationTimestamp")
    return Rewrite(
        created if isinstance(created, str) else "",
        metadata["name"],
        tuple(_rule(rule, f"spec.rules[{at}]") for at, rule in enumerate(rules)),
    )


def _rule(found: Any, where: str) -> Rule:
    matches, targets = _list(found, "matches"), _list(found, "targets")
    if not targets:
        raise ValueError(f"{where} has no targets")
    models = frozenset(_matched(match, where) for match in matches) if matches else None
    names, weights = [], []
    for target in targets:
        names.append(_name(target, "modelRewrite", where))
        weights.append(target.get("weight"))
    given = [weight for weight in weights if weight is not None]
    if not given:
        return Rule(models, tuple(names), (1,) * len(names))
    if len(given) < len(weights):
        raise ValueError(f"{where}: weight is given for some targets, and not for all")
    if not all(type(weight) is int and 1 <= weight <= _MOST_WEIGHT for weight in given):
        raise ValueError(f"{where}: a weight is not in 1..{_MOST_WEIGHT}")
    return Rule(models, tuple(names), tuple(given))


def _matched(match: Any, where: str) -> str:
    model = match.get("model") if isinstance(match, Mapping) else None
    if not isinstance(model, Mapping):
        raise ValueError(f"{where}: a match names no model")
    if model.get("type", "Exact") != "Exact":
        raise ValueError(f"{where}: a match of type {str(model['type'])[:40]!r} is not known")
    return _name(model, "value", where)


def _name(found: Any, key: str, where: str) -> str:
    name = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= LONGEST_NAME:
        raise ValueError(f"{where}: {key} is not the name of a model, 1..{LONGEST_NAME} bytes")
    return name


def _list(found: Any, key: str) -> list[Any]:
    """Empty if there is none."""
    value = found.get(key) if isinstance(found, Mapping) else None
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MOST_RULES:
        raise ValueError(f"{key} is no list of at most {MOST_RULES}")
    return value
