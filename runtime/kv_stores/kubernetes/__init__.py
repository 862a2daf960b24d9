"""How do processes in a Kubernetes cluster find each other? What they wrote, and who is ready."""

from .kubernetes_api import KubernetesApi
from .kubernetes_config import KubernetesConfig
from .kubernetes_store import KubernetesStore
from .pod_identity import PodIdentity, instance_id_of

__all__ = ["KubernetesApi", "KubernetesConfig", "KubernetesStore", "PodIdentity", "instance_id_of"]
