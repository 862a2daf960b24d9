"""A Kubernetes API server of our own, with the real one's rules of the requests that we make."""

from .api_server import KubernetesServer, service_account

__all__ = ["KubernetesServer", "service_account"]
