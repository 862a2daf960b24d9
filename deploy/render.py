"""Write deploy/manifests: what the chart makes of the values that each file names at its head."""

from pathlib import Path
from typing import Any

from helm_python.chart import Chart

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "helm" / "dynamo-router"
MANIFESTS: dict[str, dict[str, Any]] = {
    "serve": {"config": {"workers": ["grpc+dns://engines:9001"]}},
    "serve-mock": {"mockWorkers": {"enabled": True}},
    "frontend": {"mode": "frontend", "discovery": {"backend": "kubernetes"}},
    "planner": {
        "mode": "planner",
        "discovery": {"backend": "kubernetes"},
        "nats": {"url": "nats://nats:4222"},
        "config": {
            "plan_store": "nats",
            "routers": ["http://dynamo-router:9090"],
            "deployments": ["aggregated=engines"],
        },
        "planner": {"tokenSecret": "planner"},
        # Labels of its own: the router's Service must not lead to it.
        "nameOverride": "dynamo-planner",
        "fullnameOverride": "dynamo-planner",
    },
    "epp": {
        "mode": "epp",
        "replicas": 2,
        "nats": {"url": "nats://nats:4222"},
        "replicaSync": {"enabled": True},
        "inferencePool": {"create": True, "selector": {"app": "vllm"}},
    },
}
"""By the name of a file: the values that are not the chart's own."""


def rendered(
    values: dict[str, Any], release: str = "dynamo-router", namespace: str = "default"
) -> dict[str, str]:
    """What the chart makes of these values, by template. HelmError if it refuses them."""
    with Chart.load(CHART) as chart:
        files = chart.render(values=values, name=release, namespace=namespace)
    return {
        path.removeprefix("dynamo-router/templates/"): text
        for path, text in sorted(files.items())
        if text.strip()
    }


def manifest(values: dict[str, Any]) -> str:
    """One file for kubectl: without the notes and what only `helm test` runs."""
    parts = [
        text.strip()
        for path, text in rendered(values).items()
        if path != "NOTES.txt" and not path.startswith("tests/")
    ]
    head = f"# Made by deploy/render.py from the chart, with the values {values}.\n"
    return head + "---\n" + "\n---\n".join(parts) + "\n"


if __name__ == "__main__":
    for name, values in MANIFESTS.items():
        (DEPLOY / "manifests" / f"{name}.yaml").write_text(manifest(values))
