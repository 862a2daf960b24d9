"""How do processes in a Kubernetes cluster find each other? What they wrote, and who is ready."""

from .kubernetes_api import KubernetesApi
from .kubernetes_config import KubernetesConfig
from .kubernetes_store import KubernetesStore
from .pod_identity import PodIdentity, instance_id_of
from .reflector import Reflector
from .resource_position import Listed, Outcome

__all__ = [
    "KubernetesApi",
    "KubernetesConfig",
    "KubernetesStore",
    "Listed",
    "Outcome",
    "PodIdentity",
    "Reflector",
    "instance_id_of",
]
