"""How to reach a Kubernetes API server, and who we are there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ....base.urls import joined
from ....process.settings import bad_setting
from .pod_identity import PodIdentity, container_mode, namespace_of

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCH_S = 60.0


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """Where the server is, and as whom we ask. ConfigError names the variable that is not valid."""

    server: str | None = None
    """http(s)://HOST:PORT of the API server; None: what `kubeconfig` says"""
    token_file: str | None = None
    """a bearer token, read again for each request, as its issuer replaces it"""
    ca: str | None = None
    """path of the authorities that the server is believed by"""
    kubeconfig: str | None = None
    """path of a kubeconfig; its current context counts"""
    namespace: str = "default"
    identity: PodIdentity | None = None
    """None: nothing can be registered, only read"""
    containers: bool = False
    """each container of a pod is an instance, not the pod"""
    timeout_s: float = 5.0
    """the longest one call may take"""
    watch_s: float = WATCH_S
    """how long one watch lasts: the longest that a connection which died silently goes unnoticed"""
    check_s: float = 300.0
    """how long our own metadata is taken to be there without looking"""

    def __post_init__(self) -> None:
        if self.server is None and self.kubeconfig is None:
            text = "is not set, and there is no kubeconfig: where is the API server?"
            raise bad_setting("KUBERNETES_SERVICE_HOST", text)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "KubernetesConfig":
        """A kubeconfig that KUBECONFIG names, else our pod's service account, else ~/.kube/config.

        POD_NAMESPACE, POD_NAME, POD_UID, DYN_KUBE_DISCOVERY_MODE and CONTAINER_NAME say who we are.
        """
        given = os.environ if environ is None else environ
        server, token, ca = None, None, None
        kubeconfig = given.get("KUBECONFIG") or None
        host, port = given.get("KUBERNETES_SERVICE_HOST"), given.get("KUBERNETES_SERVICE_PORT")
        if kubeconfig is None and host:
            server = f"https://{joined(host, port or 443)}"
            token, ca = str(SERVICE_ACCOUNT / "token"), str(SERVICE_ACCOUNT / "ca.crt")
        elif kubeconfig is None:
            default = Path(given.get("HOME") or Path.home()) / ".kube" / "config"
            kubeconfig = str(default) if default.is_file() else None
        return cls(
            server=server,
            token_file=token,
            ca=ca,
            kubeconfig=kubeconfig,
            namespace=namespace_of(given),
            identity=PodIdentity.from_environment(given),
            containers=container_mode(given),
        )
