"""InferenceModelRewrites: which rule is a model's, and what is refused."""

import random
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.epp.pool import rewrite_of, rule_of

from dynamo_router.frontend.epp.rewrites import RewriteView

NEW, OLD = "llm-d.ai", "inference.networking.x-k8s.io"
ALL: list[str] = []


def view_of(*objects: dict[str, Any], group: str = NEW) -> RewriteView:
    view = RewriteView("qwen", random.Random(1))
    view.on_listed(group, objects)
    return view


def test_a_rule_for_the_model_goes_before_one_for_all() -> None:
    view = view_of(
        rewrite_of("a", NEW, rule_of(ALL, "general"), rule_of(["x", "y"], "exact")),
        rewrite_of("b", NEW, rule_of(["z"], "z-2")),
    )
    found = [view.target(model) for model in ("x", "y", "z", "w", "")]
    assert found == ["exact", "exact", "z-2", "general", "general"]
    assert view_of().target("x") is None
    assert view_of(rewrite_of("a", NEW, rule_of(["x"], "y"))).target("w") is None


def test_the_oldest_object_decides_then_the_first_rule() -> None:
    def of(name: str, created: str, *targets: str) -> dict[str, Any]:
        rules = [rule_of(["x"], target) for target in targets]
        return rewrite_of(name, NEW, *rules, creationTimestamp=created)

    newer, older = of("a", "2026-02-01T00:00:00Z", "new"), of("b", "2026-01-01T00:00:00Z", "1", "2")
    for objects in ((newer, older), (older, newer)):
        view = view_of(*objects)
        assert view.target("x") == "1"
        view.on_changed(NEW, older, deleted=True)
        assert view.target("x") == "new"
        view.on_changed(NEW, newer, deleted=True)
        assert view.target("x") is None


def test_an_object_of_one_name_is_that_of_todays_group() -> None:
    view = view_of(rewrite_of("a", OLD, rule_of(["x"], "old")), group=OLD)
    assert view.target("x") == "old"
    view.on_listed(NEW, [rewrite_of("a", NEW, rule_of(["x"], "new"))])
    assert view.target("x") == "new"
    view.on_listed(NEW, [])
    assert view.target("x") == "old"


@pytest.mark.parametrize(
    ("weights", "shares"), [((), (0.5, 0.5)), ((90, 10), (0.9, 0.1)), ((1, 999_999), (0.0, 1.0))]
)
def test_targets_are_drawn_by_weight(weights: Any, shares: tuple[float, float]) -> None:
    view = view_of(rewrite_of("a", NEW, rule_of(["x"], "v1", "v2", weights=weights)))
    count = 5000
    found = Counter(view.target("x") for _ in range(count))
    assert found["v1"] / count == pytest.approx(shares[0], abs=0.02)
    assert found["v2"] / count == pytest.approx(shares[1], abs=0.02)


def test_those_of_another_pool_are_none() -> None:
    other = rewrite_of("a", NEW, rule_of(["x"], "y"), pool="another")
    assert view_of(other).target("x") is None
    view = RewriteView(None)
    view.on_changed(NEW, other, deleted=False)
    assert view.target("x") == "y", "without a pool each of the namespace counts"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (rule_of(["x"]), "spec.rules[0] has no targets"),
        (rule_of(["x"], "a", "b", weights=(1,)), "weight is given for some targets"),
        (rule_of(["x"], "a", weights=(0,)), "a weight is not in 1..1000000"),
        (rule_of(["x"], "a", weights=(True,)), "a weight is not in"),
        (rule_of(["x"], "a", weights=(1 << 40,)), "a weight is not in"),
        (rule_of([""], "a"), "value is not the name of a model"),
        (rule_of(["x"], "a" * 257), "modelRewrite is not the name of a model"),
        ({"targets": [7]}, "modelRewrite is not the name of a model"),
        ({"targets": "a"}, "targets is no list"),
        ({"targets": [{"modelRewrite": "a"}] * 1001}, "targets is no list"),
        (7, "spec.rules[0] has no targets"),
        ({"matches": [{}], "targets": [{"modelRewrite": "a"}]}, "a match names no model"),
        (
            {
                "matches": [{"model": {"type": "Prefix", "value": "x"}}],
                "targets": [{"modelRewrite": "a"}],
            },
            "a match of type 'Prefix' is not known",
        ),
    ],
)
def test_what_cannot_be_read_has_no_effect_and_is_named(rule: Any, why: str) -> None:
    """As a whole: half of its rules would do something else."""
    good = rule_of(["w"], "v")
    with capture_logs() as logs:
        view = view_of(rewrite_of("canary", NEW, rule, good))
    assert view.target("x") is None and view.target("w") is None
    (entry,) = logs
    assert entry["name"] == "canary" and why in entry["error"]
    assert "InferenceModelRewrite" in entry["event"]
    view.on_changed(NEW, rewrite_of("canary", NEW, good), deleted=False)
    assert view.target("w") == "v"


@pytest.mark.parametrize("found", [None, 7, {}, {"metadata": None}, {"metadata": {"name": 7}}])
def test_what_is_no_object_is_passed_over(found: Any) -> None:
    view = view_of(rewrite_of("a", NEW, rule_of(["x"], "y")))
    view.on_changed(NEW, found, deleted=False)
    assert view.target("x") == "y"
