"""What the chart makes of values, as objects."""

import importlib.util
import tomllib
from typing import Any

import yaml
from support.places import ROOT

DEPLOY = ROOT / "deploy"
_spec = importlib.util.spec_from_file_location("deploy_render", DEPLOY / "render.py")
assert _spec is not None and _spec.loader is not None
render = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(render)

ALL_ON: dict[str, Any] = {
    "serviceMonitor": {"enabled": True, "tokenSecret": "scraper"},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "networkPolicy": {"enabled": True, "clients": [{"namespaceSelector": {}}]},
    "ingress": {"enabled": True, "host": "llm.example", "className": "nginx", "tlsSecret": "llm"},
    "httpRoute": {
        "enabled": True,
        "parentRefs": [{"name": "gateway"}],
        "hostnames": ["llm.example"],
    },
    "autoscaling": {"enabled": True},
    "auth": {"existingSecret": "callers"},
    "tls": {"existingSecret": "certificate"},
    "nats": {"url": "nats://nats:4222"},
    "replicaSync": {"enabled": True},
    "imagePullSecrets": [{"name": "registry"}],
    "image": {"digest": "sha256:" + "0" * 64},
    "priorityClassName": "high",
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "nodeSelector": {"a": "b"},
    "extraEnv": [{"name": "DYNAMO_ROUTER_LOG_LEVEL", "value": "debug"}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "podLabels": {"team": "llm"},
    "podAnnotations": {"note": "here"},
    "extraVolumes": [{"name": "model", "persistentVolumeClaim": {"claimName": "model"}}],
    "extraVolumeMounts": [{"name": "model", "mountPath": "/models"}],
}
"""Every switch of the chart that goes with every mode."""
WORKERS: dict[str, Any] = {"config": {"workers": ["grpc://a:9001", "grpcs://b:9001?id=2"]}}
CASES: dict[str, dict[str, Any]] = {
    "mock": {"mockWorkers": {"enabled": True}},
    "static": WORKERS,
    "static-all": ALL_ON
    | {
        "config": WORKERS["config"]
        | {"namespace": "llm", "router": {"block_size": 32, "admission": {"hold": False}}}
    },
    "no-openai": WORKERS | {"openai": {"enabled": False}},
    "serve-envoy": {
        "extProc": {"enabled": True},
        "epp": {"secureServing": False},
        "config": {"workers": ["openai+http://10.0.0.1:8000"]},
    },
    "serve-kubernetes": {"discovery": {"backend": "kubernetes"}},
    "serve-etcd": {"discovery": {"backend": "etcd"}, "etcd": {"endpoints": "http://etcd:2379"}},
    "frontend-kubernetes": {"mode": "frontend", "discovery": {"backend": "kubernetes"}},
    "frontend-containers": {
        "mode": "frontend",
        "discovery": {"backend": "kubernetes", "mode": "container"},
    },
    "planner-kubernetes": {
        "mode": "planner",
        "discovery": {"backend": "kubernetes"},
        "etcd": {"endpoints": "http://etcd:2379"},
        "config": {
            "plan_store": "etcd",
            "routers": ["http://frontend:8000"],
            "deployments": ["prefill=engines-prefill", "decode=engines-decode"],
            "roles": "disaggregated",
        },
        "planner": {"tokenSecret": "admin"},
        "serviceMonitor": {"enabled": True},
        "networkPolicy": {"enabled": True},
    },
    "planner-metrics": {
        "mode": "planner",
        "discovery": {"backend": "nats"},
        "nats": {"url": "nats://nats:4222"},
        "config": {"routers": ["http://frontend:8000"], "connector": "metrics"},
    },
    "epp": {"mode": "epp", "inferencePool": {"create": True, "selector": {"app": "vllm"}}},
    "epp-labels": {
        "mode": "epp",
        "inferencePool": {"enabled": False},
        "epp": {"secureServing": False, "eventsPort": 0},
        "config": {"endpoint_selector": "app=vllm", "endpoint_target_ports": "8000,8001"},
    },
    "epp-static": {
        "mode": "epp",
        "inferencePool": {"enabled": False},
        "config": {"workers": ["10.0.0.1:8000"]},
    },
    "epp-all": {name: value for name, value in ALL_ON.items() if name != "ingress"}
    | {
        "mode": "epp",
        "replicas": 2,
        "epp": {"eventsReplayPort": 5657},
        "inferencePool": {
            "create": True,
            "name": "q" * 63,
            "selector": {"app": "vllm", "role": "decode"},
            "targetPorts": [8000, 8001],
            "failureMode": "FailOpen",
        },
    },
    "frontend-nats-all": ALL_ON
    | {"mode": "frontend", "replicas": 3, "discovery": {"backend": "nats"}},
    "frontend-envoy-all": ALL_ON
    | {
        "mode": "frontend",
        "discovery": {"backend": "nats"},
        "extProc": {"enabled": True},
        "config": {"endpoint_port": 8000, "fallbacks": 1},
    },
}
"""Values by the name of what they try."""


def objects_of(values: dict[str, Any], release: str = "dynamo-router") -> list[dict[str, Any]]:
    """What `helm install` would create, and `helm test`."""
    files = render.rendered(values, release, "llm")
    texts = (text for path, text in files.items() if path != "NOTES.txt")
    return [each for text in texts for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def one(objects: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    """The only object of this kind whose name ends so."""
    (found,) = (
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["name"].endswith(f"dynamo-router{suffix}")
    )
    return found


def settings_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The configuration file of the router's pods."""
    return tomllib.loads(one(objects, "ConfigMap")["data"]["dynamo-router.toml"])
