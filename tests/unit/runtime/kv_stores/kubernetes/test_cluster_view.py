"""Who is visible, by what the API server says: whatever it says, in whatever order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base import unreadable
from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.kv_stores import Deleted, Entry
from dynamo_router.runtime.kv_stores.kubernetes import (
    KubernetesConfig,
    PodIdentity,
    instance_id_of,
)
from dynamo_router.runtime.kv_stores.kubernetes.cluster_view import (
    ClusterView,
    ready_in_pod,
    ready_in_slice,
)
from dynamo_router.runtime.kv_stores.kubernetes.worker_metadata import (
    manifest,
    normalized,
    read_metadata,
)

INSTANCES = "v1/instances"
NAMES = ("a", "b", "c")


def metadata(name: str, data: Any, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid}, "spec": {"data": data}}


def slice_of(*names: str) -> dict[str, Any]:
    endpoints = [{"conditions": {"ready": True}, "targetRef": {"name": name}} for name in names]
    return {"metadata": {"name": "slice"}, "endpoints": endpoints}


def says(address: str) -> dict[str, Any]:
    return {"endpoints": {"n/c/e/1": {"transport": {"tcp": address}}}}


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("worker-0", 1186445869714687),  # said by Rust's DefaultHasher
        ("worker-0-engine-0", 8051026481054291),
        ("a", 7688582637611507),
        ("", 121655548788207),
    ],
)
def test_ids_are_those_that_dynamo_gives(name: str, id: int) -> None:
    assert instance_id_of(name) == id


def test_a_null_stands_for_what_the_same_object_said_last() -> None:
    unreadable.counts.clear()
    view = ClusterView(ready_in_slice)
    view.on_readiness(slice_of("a"), False)
    view.on_metadata(metadata("a", says("x:1")), False)
    before = dict(view.entries(INSTANCES))
    assert before
    for said in (None, [], {"endpoints": 7}):
        assert view.on_metadata(metadata("a", said), False) == {}
        assert view.on_metadata_listed([metadata("a", said)]) == {}
        assert view.entries(INSTANCES) == before
    assert view.on_metadata(metadata("a", None, "another"), False) == {
        INSTANCES: [Deleted("n/c/e/1", 2)]
    }
    assert unreadable.counts["kubernetes"] == 7


def test_null_maps_are_empty() -> None:
    nothing = {"endpoints": None, "model_cards": None, "event_channels": None}
    assert not any(read_metadata(metadata("a", nothing)).data.values())


def test_of_two_that_claim_a_key_its_owner_has_it() -> None:
    view = ClusterView(ready_in_slice)
    key = f"n/c/e/{instance_id_of('b'):x}"
    view.on_readiness(slice_of("a", "b", "c"), False)
    for name in NAMES:
        view.on_metadata(metadata(name, {"endpoints": {key: {"from": name}}}), False)
    assert view.entries(INSTANCES)[key].value == b'{"from":"b"}'
    assert view.entries(INSTANCES)[key].lease == instance_id_of("b")


@pytest.mark.parametrize(
    "garbage",
    [None, 7, [], {}, {"metadata": {}}, {"metadata": {"name": ""}}, {"metadata": {"name": 7}}],
)
def test_objects_that_are_none_change_nothing(garbage: Any) -> None:
    view = ClusterView(ready_in_slice)
    view.on_metadata_listed([metadata("a", says("x:1")), garbage])
    view.on_readiness_listed([garbage, slice_of("a")])
    before = dict(view.entries(INSTANCES))
    assert list(before) == ["n/c/e/1"]
    for deleted in (False, True):
        view.on_metadata(garbage, deleted)
        view.on_readiness(garbage, deleted)
    assert view.entries(INSTANCES) == before


@pytest.mark.parametrize(
    "endpoints", [7, [7], [{"conditions": 7}], [{"conditions": {"ready": True}, "targetRef": 7}]]
)
def test_slices_of_strangers_make_nobody_ready(endpoints: Any) -> None:
    found = {"metadata": {"name": "s"}, "endpoints": endpoints}
    view = ClusterView(ready_in_slice)
    view.on_metadata(metadata("a", says("x:1")), False)
    assert view.on_readiness(found, False) == {}


def test_containers_are_named_after_their_pod() -> None:
    statuses = [
        {"name": "main", "ready": True},
        {"name": "e", "ready": True},
        {"name": "f", "ready": False},
    ]
    pod = {"metadata": {"name": "p"}, "status": {"containerStatuses": statuses}}
    assert ready_in_pod(pod) == {"p", "p-e"}
    assert ready_in_pod({"metadata": {"name": "p"}}) == frozenset()


steps = st.one_of(
    st.tuples(st.just("ready"), st.sets(st.sampled_from(NAMES))),
    st.tuples(st.just("says"), st.tuples(st.sampled_from(NAMES), st.sampled_from("xy"))),
    st.tuples(st.just("gone"), st.sampled_from(NAMES)),
    st.tuples(st.just("listed"), st.dictionaries(st.sampled_from(NAMES), st.sampled_from("xy"))),
)


@given(st.lists(steps))
def test_what_is_told_adds_up_to_what_is_visible(given_steps: list[tuple[str, Any]]) -> None:
    """Against a model: names that are ready and what each says; and replaying the changes."""
    view, ready, said = ClusterView(ready_in_slice), set[str](), dict[str, str]()
    replayed: dict[str, bytes] = {}
    revision = 0

    def whole(name: str, word: str) -> dict[str, Any]:
        return metadata(name, {"endpoints": {name: {"word": word}}})

    for kind, value in given_steps:
        if kind == "ready":
            ready, changes = value, view.on_readiness(slice_of(*value), False)
        elif kind == "says":
            said[value[0]] = value[1]
            changes = view.on_metadata(whole(*value), False)
        elif kind == "gone":
            said.pop(value, None)
            changes = view.on_metadata(metadata(value, None), True)
        else:
            said = dict(value)
            changes = view.on_metadata_listed([whole(*each) for each in value.items()])
        for change in changes.get(INSTANCES, []):
            assert change.revision > revision
            revision = change.revision
            if isinstance(change, Entry):
                replayed[change.key] = change.value
            else:
                del replayed[change.key]
        wanted = {
            name: b'{"word":"%s"}' % word.encode() for name, word in said.items() if name in ready
        }
        assert replayed == wanted
        assert {key: entry.value for key, entry in view.entries(INSTANCES).items()} == wanted


def test_values_have_one_form() -> None:
    assert normalized(b'{"b":1, "a":{"d":2,"c":[]}}') == b'{"a":{"c":[],"d":2},"b":1}'
    identity = PodIdentity("p", "u", "n", "engine-0")
    made = manifest(identity, {INSTANCES: {"k": b'{"a":1}'}})
    assert made["metadata"]["name"] == "p-engine-0"
    assert made["metadata"]["ownerReferences"][0]["controller"] is False
    assert read_metadata(made).data[INSTANCES] == {"k": b'{"a":1}'}


IN_A_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HOME": "/nowhere"}, "KUBERNETES_SERVICE_HOST: is not set"),
        ({**IN_A_CLUSTER, "POD_NAME": "p"}, "POD_UID: is not set"),
        ({**IN_A_CLUSTER, "POD_UID": "u"}, "POD_NAME: is not set"),
        ({**IN_A_CLUSTER, "DYN_KUBE_DISCOVERY_MODE": "node"}, "'node' is neither pod nor"),
    ],
)
def test_an_environment_that_is_no_good_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KubernetesConfig.from_environment(environ)


def test_the_environment_of_a_pod() -> None:
    pod = {"POD_NAME": "p", "POD_UID": "u", "POD_NAMESPACE": "n", "CONTAINER_NAME": "e"}
    config = KubernetesConfig.from_environment({**IN_A_CLUSTER, **pod})
    assert config.server == "https://10.0.0.1:6443" and config.namespace == "n"
    assert config.identity == PodIdentity("p", "u", "n")
    environ = {**IN_A_CLUSTER, **pod, "DYN_KUBE_DISCOVERY_MODE": "container"}
    config = KubernetesConfig.from_environment(environ)
    assert config.containers and config.identity == PodIdentity("p", "u", "n", "e")
    assert config.identity.name == "p-e"
