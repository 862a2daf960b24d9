"""What is served where, and by whom? Namespaces, components, endpoints and their instances."""

from .answers import NOTHING, data_of
from .cancellation import CancellationToken
from .client import Client
from .components import Component, Endpoint, Namespace
from .distributed_runtime import DistributedRuntime
from .instance_selector import InstanceSelector, Selection
from .instances import INSTANCES, SERVICES, EndpointName, Instance, decode_instance

__all__ = [
    "CancellationToken",
    "Client",
    "Component",
    "DistributedRuntime",
    "Endpoint",
    "EndpointName",
    "INSTANCES",
    "Instance",
    "InstanceSelector",
    "Namespace",
    "Selection",
    "NOTHING",
    "SERVICES",
    "data_of",
    "decode_instance",
]
