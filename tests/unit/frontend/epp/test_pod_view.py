"""Which endpoints pods are, and which settings say so."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.epp.pool import endpoints_of, objective_of, pod_of, pool_of

from dynamo_router.base import unreadable
from dynamo_router.base.errors import ConfigError
from dynamo_router.frontend.epp.control_headers import read_control
from dynamo_router.frontend.epp.objectives import ObjectiveView
from dynamo_router.frontend.epp.pod_view import PodView, read_pod, read_pool
from dynamo_router.frontend.epp.pool_objects import GROUPS
from dynamo_router.frontend.picker_config import PickerConfig
from dynamo_router.frontend.pods_config import PodsConfig

LONGEST = "a" * 63
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def decode(view: PodView) -> list[str]:
    return list(endpoints_of(view.workers["decode"]))


def test_each_target_port_of_a_ready_pod_is_an_endpoint() -> None:
    view = PodView(PodsConfig(pool="qwen", events_port=5557, events_replay_port=5657))
    view.on_pods_listed([pod_of("a", "10.0.0.1"), pod_of("b", "fd00::2")])
    assert decode(view) == [], "there is no pool yet"
    view.on_pool(pool_of("qwen", 8000, 8001))
    assert decode(view) == ["10.0.0.1:8000", "10.0.0.1:8001", "[fd00::2]:8000", "[fd00::2]:8001"]
    urls = {worker.url.address: worker.url for worker in view.workers["decode"].values()}
    assert urls["10.0.0.1:8000"].events == "tcp://10.0.0.1:5557"
    assert urls["[fd00::2]:8001"].events == "tcp://[fd00::2]:5558"
    assert urls["[fd00::2]:8001"].replay == "tcp://[fd00::2]:5658"
    view.on_pool(pool_of("qwen", 9000))
    assert decode(view) == ["10.0.0.1:9000", "[fd00::2]:9000"]
    view.on_pool(None)
    assert decode(view) == []


@pytest.mark.parametrize(
    "pod",
    [
        pod_of("a", None),
        pod_of("a", ready=False),
        pod_of("a", terminating=True),
        pod_of("a") | {"status": {}},
        pod_of("a", labels={"llm-d.ai/role": "encode"}),
    ],
)
def test_pods_that_take_no_requests(pod: dict[str, Any]) -> None:
    view = PodView(PodsConfig(endpoint_selector="a=b", endpoint_target_ports="80"))
    view.on_pod(pod_of("a", "10.0.0.1"), deleted=False)
    assert decode(view) == ["10.0.0.1:80"]
    view.on_pod(pod, deleted=False)
    assert decode(view) == []


def test_a_pod_that_changes_its_address_or_is_another_one() -> None:
    view = PodView(PodsConfig(endpoint_selector="a=b", endpoint_target_ports="80"))
    view.on_pod(pod_of("a", "10.0.0.1"), deleted=False)
    (first,) = view.workers["decode"].values()
    view.on_pod(pod_of("a", "10.0.0.2"), deleted=False)
    assert decode(view) == ["10.0.0.2:80"]
    again = pod_of("b", "10.0.0.1")
    again["metadata"]["uid"] = "other"
    view.on_pod(again, deleted=False)
    second = next(w for w in view.workers["decode"].values() if w.url == first.url)
    assert second != first, "another pod has its address, and none of its cache"
    view.on_pod(again, deleted=True)
    assert decode(view) == ["10.0.0.2:80"]


def test_roles_are_those_of_a_label() -> None:
    view = PodView(PodsConfig(pool="qwen"))
    view.on_pool(pool_of())
    for number, role in enumerate(("prefill", "decode", "prefill-decode", "")):
        labels = {"llm-d.ai/role": role} if role else {}
        view.on_pod(pod_of(f"p{number}", f"10.0.0.{number}", labels=labels), deleted=False)
    assert endpoints_of(view.workers["prefill"]) == ["10.0.0.0:8000"]
    assert decode(view) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]
    whole = [view.workers["decode"][worker].url.address for worker in view.aggregated]
    assert sorted(whole) == ["10.0.0.2:8000", "10.0.0.3:8000"]


def test_what_cannot_be_read_stands_for_what_could() -> None:
    unreadable.counts.clear()
    view = PodView(PodsConfig(pool="qwen"))
    view.on_pool(pool_of())
    view.on_pod(pod_of("a", "10.0.0.1"), deleted=False)
    view.on_pool({"spec": {}})
    view.on_pod(pod_of("a", "not an address"), deleted=False)
    view.on_pods_listed([pod_of("a") | {"status": []}, pod_of("b", "x"), None])
    assert decode(view) == ["10.0.0.1:8000"]
    assert unreadable.counts["pods"] == 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"selector": {"app": "qwen"}}, "matchLabels is not there"),
        ({"selector": {"matchLabels": {}}}, "has no labels"),
        ({"selector": {"matchLabels": {"a": 1}}}, "has no labels"),
        ({"targetPorts": []}, "no list of 1 to 8 ports"),
        ({"targetPorts": [{"number": n} for n in range(1, 10)]}, "no list of 1 to 8 ports"),
        ({"targetPorts": [{"number": 1}, {"number": 1}]}, "one twice"),
        ({"targetPorts": [{"number": 65536}]}, "no port"),
        ({"targetPorts": [8000]}, "no port"),
    ],
)
def test_pools_that_are_none(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_pool(pool_of(**change))


@given(JSON)
def test_no_object_breaks_the_view(found: Any) -> None:
    view = PodView(PodsConfig(pool="qwen"))
    view.on_pool(found)
    for shape in (found, {"metadata": found}, {"metadata": {}, "status": found}):
        view.on_pod(shape, deleted=False)
        view.on_pods_listed([shape])
        view.on_pod(shape, deleted=True)
    status = {"status": {"conditions": found}, "metadata": {}}
    try:
        assert read_pod(status) is None
    except ValueError:
        pass


def test_objectives_of_both_groups() -> None:
    view = ObjectiveView("qwen")
    new, old = GROUPS
    view.on_listed(old, [objective_of("chat", old, priority=5), objective_of("none", old)])
    view.on_listed(new, [objective_of("batch", new, priority=-1)])
    assert [view.priority(name) for name in ("chat", "none", "batch", "x")] == [5, 0, -1, None]
    view.on_changed(new, objective_of("chat", new, priority=7), deleted=False)
    assert view.priority("chat") == 7, "the newer group goes first"
    view.on_changed(new, objective_of("chat", new, priority=7), deleted=True)
    assert view.priority("chat") == 5
    view.on_changed(old, objective_of("chat", old, "another pool", priority=9), deleted=False)
    assert view.priority("chat") is None
    for bad in (True, 1 << 31, "1", None):
        view.on_changed(old, objective_of("bad", old, priority=bad), deleted=False)
        assert view.priority("bad") is None
    for shape in (None, {}, {"metadata": {"name": 1}}, {"metadata": {"name": "a"}, "spec": []}):
        view.on_changed(old, shape, deleted=False)
    view.on_listed(old, [])
    assert view.priority("none") is None


def test_an_objective_is_a_priority_unless_the_client_names_one() -> None:
    view = ObjectiveView(None)
    view.on_changed(GROUPS[0], objective_of("chat", GROUPS[0], priority=5), deleted=False)
    name, number = "x-llm-d-inference-objective", "x-dynamo-request-priority"

    def priority(**headers: str) -> str | None:
        found = {key.replace("_", "-"): value for key, value in headers.items()}
        return dict(read_control(found, view).metadata).get("x-dynamo-priority")

    assert priority(**{name: "chat"}) == "5"
    assert priority(**{"x-gateway-inference-objective": "chat"}) == "5"
    assert priority(**{name: "chat", number: "9"}) == "9"
    assert priority(**{name: "unknown"}) is None
    asked = read_control({name: "chat"}, view)
    assert list(asked.remove) == [name], "and it reaches no engine"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"pool": "Qwen"}, "pool: 'Qwen' is no name of an object"),
        ({"pool": "a" * 254}, "pool: .* is no name of an object"),
        ({"pool": "a", "pool_namespace": "a" * 64}, "pool_namespace: .* is no name"),
        ({"pool_namespace": "a"}, "pool_namespace: needs pool or endpoint_selector"),
        ({"events_port": 5557}, "events_port: needs pool or endpoint_selector"),
        ({"pool": "a", "events_replay_port": 5557}, "events_replay_port: needs events_port"),
        ({"pool": "a", "events_port": 65530}, "events_port: must be in 1..65528"),
        ({"pool": "a", "endpoint_selector": "a=b"}, "endpoint_selector: a pool has a selector"),
        ({"endpoint_selector": "a=b"}, "endpoint_selector and endpoint_target_ports need each"),
        ({"endpoint_target_ports": "80"}, "endpoint_selector and endpoint_target_ports need each"),
        ({"endpoint_selector": "a in (b)", "endpoint_target_ports": "80"}, "is not KEY=VALUE"),
        ({"endpoint_selector": "a=b", "endpoint_target_ports": "80,80"}, "different ports"),
        ({"endpoint_selector": "a=b", "endpoint_target_ports": "0"}, "different ports"),
        ({"endpoint_selector": "a=b", "endpoint_target_ports": "80,x"}, "different ports"),
        ({"endpoint_selector": "a=b", "endpoint_target_ports": "1,2,3,4,5,6,7,8,9"}, "1 to 8"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PodsConfig(**values)


def test_names_may_be_long() -> None:
    config = PodsConfig(pool=LONGEST, pool_namespace=LONGEST)
    assert config.are_watched
    selector = f"{LONGEST}={LONGEST},llm-d.ai/role=decode"
    found = PodsConfig(endpoint_selector=selector, endpoint_target_ports="80, 81")
    assert found.ports == (80, 81)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"workers": ("10.0.0.1:80?role=encode",)}, "role is not prefill or decode"),
        ({"workers": ("10.0.0.1:80?role=decode&role=decode",)}, "role is not prefill or decode"),
        ({"workers": ("10.0.0.1:80?role=prefill",)}, "there is no endpoint to pick"),
        (
            {"workers": (), "pods": PodsConfig(pool="a"), "discovery": "file"},
            "pods are endpoints already",
        ),
    ],
)
def test_settings_of_a_picker_that_do_not_fit(values: dict[str, Any], text: str) -> None:
    from dynamo_router.workers.records import DiscoveryConfig

    if "discovery" in values:
        found = DiscoveryConfig(discovery=values["discovery"])
        values = values | {"discovery": found, "endpoint_port": 80}
    with pytest.raises(ConfigError, match=text):
        PickerConfig(**values)


def test_roles_of_endpoints_are_told_by_their_urls() -> None:
    given = ("10.0.0.1:80?role=prefill&id=7", "10.0.0.2:80?role=decode", "10.0.0.3:80")
    config = PickerConfig(workers=given)
    assert config.prefill_workers == ("openai+http://10.0.0.1:80?id=7",)
    assert config.workers == ("openai+http://10.0.0.2:80", "openai+http://10.0.0.3:80")
    assert not PickerConfig(workers=(), pods=PodsConfig(pool="a")).workers
