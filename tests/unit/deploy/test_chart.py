"""The chart, rendered by Helm: objects that Kubernetes knows, settings that the router takes.

No cluster is asked: the kinds of Kubernetes are checked by its own schemas, those of others by
what is written down here of them.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from helm_python.chart import lint
from helm_python.errors import HelmError
from kubernetes_validate import utils as schemas
from support.deploy.charts import (
    ALL_ON,
    CASES,
    DEPLOY,
    WORKERS,
    objects_of,
    one,
    render,
    settings_of,
)
from support.places import ROOT

from dynamo_router.cli import COMMANDS, build_command
from dynamo_router.frontend.epp.listeners import LIVENESS, READINESS

HELM = os.environ.get("HELM") or shutil.which("helm")
VERSIONS = ("1.33", "1.37")
CHART = DEPLOY / "helm" / "dynamo-router"
TEXT = {"type": "string", "minLength": 1}


def shape(required: str, **properties: Any) -> dict[str, Any]:
    """A schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


SECRET_KEY = shape("name key", name=TEXT, key=TEXT, optional={"type": "boolean"})
CUSTOM = {
    "InferencePool": shape(
        "selector targetPorts endpointPickerRef",
        selector=shape(
            "matchLabels",
            matchLabels={"type": "object", "minProperties": 1, "maxProperties": 64},
        ),
        targetPorts={
            "type": "array",
            "minItems": 1,
            "maxItems": 8,
            "uniqueItems": True,
            "items": shape("number", number={"type": "integer"}),
        },
        endpointPickerRef=shape(
            "kind name port",
            kind={"const": "Service"},
            name=TEXT,
            port=shape("number", number={"type": "integer"}),
            failureMode={"enum": ["FailClose", "FailOpen"]},
        ),
    ),
    "ServiceMonitor": shape(
        "selector endpoints",
        selector=shape("matchLabels", matchLabels={"type": "object"}),
        endpoints={
            "type": "array",
            "items": shape(
                "port",
                port=TEXT,
                path={"const": "/metrics"},
                interval={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
                scheme={"enum": ["http", "https"]},
                tlsConfig=shape("ca", ca=shape("secret", secret=SECRET_KEY), serverName=TEXT),
                authorization=shape("credentials", credentials=SECRET_KEY),
            ),
        },
    ),
    "PrometheusRule": shape(
        "groups",
        groups={
            "type": "array",
            "minItems": 1,
            "items": shape(
                "name rules",
                name=TEXT,
                rules={
                    "type": "array",
                    "minItems": 1,
                    "items": shape(
                        "alert expr",
                        alert=TEXT,
                        expr=TEXT,
                        **{"for": TEXT},
                        labels={"type": "object"},
                        annotations={"type": "object"},
                    ),
                },
            ),
        },
    ),
    "HTTPRoute": shape(
        "parentRefs rules",
        parentRefs={"type": "array", "items": {"type": "object", "required": ["name"]}},
        hostnames={"type": "array", "items": TEXT},
        rules={
            "type": "array",
            "items": shape(
                "matches backendRefs",
                matches={
                    "type": "array",
                    "items": shape("path", path=shape("type value", type=TEXT, value=TEXT)),
                },
                backendRefs={
                    "type": "array",
                    "items": {
                        "oneOf": [
                            shape("name port", name=TEXT, port={"type": "integer"}),
                            shape(
                                "group kind name",
                                group={"const": "inference.networking.k8s.io"},
                                kind={"const": "InferencePool"},
                                name=TEXT,
                            ),
                        ]
                    },
                },
            ),
        },
    ),
}
"""What the specs of kinds may say that Kubernetes itself does not have."""


@pytest.fixture(scope="module")
def schemas_read_once() -> Iterator[None]:
    """They are long, and read anew for each object."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schemas, "schema_contents", cache(schemas.schema_contents))
        yield


@pytest.mark.usefixtures("schemas_read_once")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("release", ["r", "x" * 53], ids=["short", "longest"])
def test_every_object_is_one_that_kubernetes_takes(case: str, release: str) -> None:
    objects = objects_of(CASES[case], release)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for _, name in names)
    for each, version in itertools.product(objects, VERSIONS):
        if each["kind"] in CUSTOM:
            jsonschema.validate(each["spec"], CUSTOM[each["kind"]])
        else:
            kubernetes_validate.validate(each, version, strict=True)


def test_every_case_has_its_kinds() -> None:
    """So that no test above passes for want of objects."""
    kinds = {kind: {each["kind"] for each in objects_of(values)} for kind, values in CASES.items()}
    everywhere = {"Deployment", "Service", "ConfigMap", "ServiceAccount"}
    assert all(everywhere <= found for found in kinds.values())
    all_on = {"HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "Ingress", *CUSTOM}
    carried = all_on - {"InferencePool"}
    assert carried <= kinds["static-all"] and carried <= kinds["frontend-nats-all"]
    assert all_on - {"Ingress"} <= kinds["epp-all"]
    assert "InferencePool" not in kinds["epp-labels"]
    assert {"Role", "RoleBinding"} <= kinds["frontend-kubernetes"]
    assert {"Role", "RoleBinding"} <= kinds["planner-kubernetes"]
    assert "Role" not in kinds["planner-metrics"], "it scales nothing itself"
    assert "Role" not in kinds["static"], "nothing is asked of the API server"


@pytest.mark.parametrize("case", CASES)
def test_the_router_takes_its_settings(case: str, tmp_path: Path) -> None:
    objects = objects_of(CASES[case])
    mode, *words = container(objects)["args"]
    assert words == ["--config=/etc/dynamo-router/dynamo-router.toml"]
    file = tmp_path / "dynamo-router.toml"
    file.write_text(one(objects, "ConfigMap")["data"]["dynamo-router.toml"])
    command = build_command("config", COMMANDS["config"])
    result = CliRunner().invoke(command, ["--check", str(file), "--command", mode])
    assert result.exception is None, result.exception
    assert f"settings of {mode}, each valid" in result.output
    wanted = CASES[case].get("config", {})
    found = settings_of(objects)
    assert {key: found[key] for key in wanted if key != "router"} == {
        key: value for key, value in wanted.items() if key != "router"
    }
    assert wanted.get("router", {}).items() <= found.get("router", {}).items()


@pytest.mark.parametrize("case", CASES)
def test_ports_of_probes_services_and_rules_are_those_of_the_container(case: str) -> None:
    objects = objects_of(CASES[case])
    router = container(objects)
    ports = {each["name"]: each["containerPort"] for each in router["ports"]}
    found = settings_of(objects)
    keys = (
        "port", "http_port", "http_frontend", "grpc_port", "ext_proc_port", "grpc_health_port",
    )  # fmt: skip
    listens = {found.get(key) for key in keys} - {None}
    assert set(ports.values()) == listens
    probes = [router[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
    if case.startswith("epp"):
        services = [(probe["grpc"]["port"], probe["grpc"]["service"]) for probe in probes]
        health = found["grpc_health_port"]
        assert services == [(health, LIVENESS), (health, LIVENESS), (health, READINESS)]
        status = "metrics"
    else:
        asked = [probe["httpGet"] for probe in probes]
        assert [probe["path"] for probe in asked] == ["/live", "/live", "/health"]
        scheme = "HTTPS" if "tls" in CASES[case] else None
        assert all(probe["port"] in ports and probe.get("scheme") == scheme for probe in asked)
        status = asked[0]["port"]
    for port in one(objects, "Service")["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    for each in objects:
        spec = each.get("spec", {})
        if each["kind"] == "NetworkPolicy":
            named = [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
            assert sorted(named) == sorted(ports)
        if each["kind"] == "ServiceMonitor":
            assert spec["endpoints"][0]["port"] == status
        if each["kind"] == "InferencePool":
            ref = spec["endpointPickerRef"]
            assert ref["name"] == one(objects, "Service")["metadata"]["name"]
            assert ref["port"]["number"] == ports["extproc"]
            assert each["metadata"]["name"] == found["pool"]
        if each["kind"] == "HTTPRoute" and case.startswith("epp"):
            assert spec["rules"][0]["backendRefs"][0]["name"] == found["pool"]
        if each["kind"] == "Ingress":
            backend = spec["rules"][0]["http"]["paths"][0]["backend"]["service"]
            assert backend["port"]["name"] in ports


@pytest.mark.parametrize("case", CASES)
def test_names_in_the_environment_are_read(case: str) -> None:
    names = {each["name"] for each in container(objects_of(CASES[case]))["env"]}
    code = "".join(path.read_text() for path in (ROOT / "runtime").rglob("*.py"))
    assert {name for name in names if f'"{name}"' not in code} <= {"DYNAMO_ROUTER_LOG_LEVEL"}


@pytest.mark.parametrize("case", CASES)
def test_pods_may_do_little(case: str) -> None:
    for each in objects_of(CASES[case]):
        pod = each["spec"] if each["kind"] == "Pod" else each.get("spec", {}).get("template", {})
        pod = pod.get("spec", pod)
        for one_of in pod.get("containers", []):
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            context = one_of["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert pod["enableServiceLinks"] is False
            kubernetes = CASES[case].get("discovery", {}).get("backend") == "kubernetes"
            watches = case.startswith("epp") and case != "epp-static"
            assert pod["automountServiceAccountToken"] in (False, kubernetes or watches)


def test_a_new_setting_makes_new_pods() -> None:
    def pods(level: str) -> Any:
        objects = objects_of({"config": WORKERS["config"] | {"log_level": level}})
        return one(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert pods("info") != pods("debug")
    assert pods("info") == pods("info")


def test_behind_a_gateway_one_address_may_have_all_connections() -> None:
    gateway = WORKERS | {"ingress": {"enabled": True, "host": "llm.example"}}
    assert "peers" not in settings_of(objects_of(WORKERS))
    assert settings_of(objects_of(gateway))["peers"] == {"max_connection_share": 1}
    own = {"max_connection_share": 0.25, "max_http_connections": 64}
    given = gateway | {"config": WORKERS["config"] | {"peers": own}}
    assert settings_of(objects_of(given))["peers"] == own


def test_stopping_has_the_time_that_it_takes() -> None:
    def grace(**values: Any) -> int:
        objects = objects_of(WORKERS | values)
        spec = one(objects, "Deployment")["spec"]["template"]["spec"]
        return int(spec["terminationGracePeriodSeconds"])

    assert grace() == 10 + 60 + 10
    assert grace(config=WORKERS["config"] | {"lame_duck_s": 2.5, "drain_timeout_s": 300}) == 313
    assert grace(terminationGracePeriodSeconds=70) == 70


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "no engines: name them in config.workers, set discovery.backend, or try mock"),
        ({"mode": "frontend"}, "mode frontend finds its models in a store"),
        ({"mode": "worker"}, "at '/mode': value must be one of"),
        (WORKERS | {"replicaSync": {"enabled": True}}, "replicaSync.enabled needs nats.url"),
        ({"discovery": {"backend": "etcd"}}, "discovery.backend etcd needs etcd.endpoints"),
        ({"discovery": {"backend": "nats"}}, "discovery.backend nats needs nats.url"),
        (
            {"mode": "frontend", "discovery": {"backend": "kubernetes"}}
            | {"mockWorkers": {"enabled": True}},
            "mockWorkers are engines of mode serve",
        ),
        (WORKERS | {"ingress": {"enabled": True}}, "ingress.enabled needs ingress.host"),
        (WORKERS | {"httpRoute": {"enabled": True}}, "httpRoute.enabled needs httpRoute.parent"),
        (
            WORKERS
            | {"openai": {"enabled": False}, "ingress": {"enabled": True, "host": "llm.example"}},
            "ingress and httpRoute lead to OpenAI's API: openai.enabled",
        ),
        (
            WORKERS | {"terminationGracePeriodSeconds": 69},
            "69 cuts requests off: stopping takes up to 70 s",
        ),
        (
            {"mode": "epp", "ingress": {"enabled": True, "host": "a"}},
            "mode epp carries no requests",
        ),
        (
            {"mode": "epp", "inferencePool": {"enabled": False}},
            "no endpoints: inferencePool.enabled",
        ),
        ({"mode": "epp", "inferencePool": {"create": True}}, "create needs inferencePool.enabled"),
        ({"mode": "epp", "inferencePool": {"targetPorts": [1] * 9}}, "targetPorts"),
        ({"mode": "epp", "discovery": {"backend": "kubernetes"}}, "endpoints are those of a pool"),
        (
            {"mode": "epp", "inferencePool": {"enabled": False}}
            | {"config": {"workers": ["a:1"]}, "httpRoute": {"enabled": True, "parentRefs": [{}]}},
            "httpRoute of mode epp leads to the pool",
        ),
        ({"mode": "epp", "config": {"pool": "a"}}, "config"),
        ({"mode": "epp", "extProc": {"enabled": True}}, "extProc.enabled is for modes serve and"),
        (WORKERS | {"config": {"ext_proc_port": 1}}, "config"),
        (WORKERS | {"inferencePool": {"create": True}}, "inferencePool is for mode epp"),
        (WORKERS | {"replica": 2}, "replica"),
        *(
            (CASES["planner-kubernetes"] | change, text)
            for change, text in (
                ({"discovery": {"backend": "static"}}, "mode planner finds engines in a store"),
                ({"config": {}}, "mode planner needs config.routers"),
                ({"config": {"routers": ["http://r"]}}, "needs config.deployments: [ROLE=NAME"),
                (
                    {"config": {"routers": ["http://r"], "deployments": ["decode=d"]}},
                    "Kubernetes keeps no decisions: config.plan_store etcd or nats",
                ),
                ({"etcd": {"endpoints": ""}}, "config.plan_store etcd needs etcd.endpoints"),
                ({"tls": {"existingSecret": "x"}}, "mode planner serves no clients"),
                ({"planner": {"token": "x"}}, "token"),
            )
        ),
        (WORKERS | {"probes": {"liveness": {"periodSecond": 2}}}, "periodSecond"),
        (WORKERS | {"ports": {"http": 70000}}, "'/ports/http': maximum"),
        (WORKERS | {"image": {"digest": "latest"}}, "digest"),
        ({"config": WORKERS["config"] | {"port": 1}}, "config"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(HelmError, match=re.escape(text)):
        objects_of(values)


def test_the_schema_has_each_value_and_no_other() -> None:
    def names(schema: dict[str, Any]) -> Any:
        if schema.get("additionalProperties") is not False:
            return None
        return {key: names(each) for key, each in schema["properties"].items()}

    def fits(values: Any, schema: Any, path: str) -> None:
        if schema is None or not isinstance(values, dict):
            return
        assert values.keys() == schema.keys() - {"global"}, path
        for key, value in values.items():
            inner = dict.fromkeys(value, None) if path == ".probes" else schema[key]
            fits(value, inner, f"{path}.{key}")

    schema = names(json.loads((CHART / "values.schema.json").read_text()))
    schema["probes"] = dict.fromkeys(schema["probes"])
    fits(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "")


def test_helm_finds_no_fault() -> None:
    found = lint(str(CHART), values=WORKERS | ALL_ON, strict=True)
    assert found["errors"] == []


@pytest.mark.skipif(HELM is None, reason="no helm: HELM=PROGRAM")
@pytest.mark.parametrize("case", CASES)
def test_helms_own_program_makes_the_same(case: str, tmp_path: Path) -> None:
    assert HELM is not None
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(CASES[case]))
    more = ["--namespace", "llm", "--values", str(values)]

    def run(*words: str) -> str:
        done = subprocess.run([HELM, *words, *more], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = [each for each in yaml.safe_load_all(run("template", "router", str(CHART))) if each]

    def by_name(objects: list[dict[str, Any]]) -> dict[Any, Any]:
        return {(each["kind"], each["metadata"]["name"]): each for each in objects}

    assert by_name(made) == by_name(objects_of(CASES[case], "router"))
    run("lint", "--strict", str(CHART))


def test_the_manifests_are_what_the_chart_makes() -> None:
    files = list((DEPLOY / "manifests").iterdir())
    assert {file.stem for file in files} == set(render.MANIFESTS)
    for file in files:
        assert file.read_text() == render.manifest(render.MANIFESTS[file.stem]), (
            "python deploy/render.py"
        )


def test_the_pod_that_helm_test_runs_is_a_program() -> None:
    objects = objects_of(WORKERS)
    (program,) = one(objects, "Pod", "-test")["spec"]["containers"][0]["args"]
    ended = subprocess.run(
        [sys.executable, "-c", program.replace("http://dynamo-router:9090", "http://127.0.0.1:9")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Connection refused" in ended.stderr, "it asked"


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The router's."""
    (found,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found
