"""What is served where, and by whom? Namespaces, components, endpoints and their instances."""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .answers import NOTHING, data_of
from .cancellation import CancellationToken
from .client import Client
from .components import Component, Endpoint, Namespace
from .instance_selector import InstanceSelector, Selection
from .instances import (
    GENERATIONS,
    INSTANCES,
    SERVICES,
    EndpointName,
    Generation,
    Instance,
    beside,
    decode_instance,
    read_id,
)

if TYPE_CHECKING:
    from .distributed_runtime import DistributedRuntime

__all__ = [
    "CancellationToken",
    "Client",
    "Component",
    "DistributedRuntime",
    "Endpoint",
    "EndpointName",
    "GENERATIONS",
    "Generation",
    "INSTANCES",
    "Instance",
    "InstanceSelector",
    "Namespace",
    "Selection",
    "NOTHING",
    "SERVICES",
    "beside",
    "data_of",
    "decode_instance",
    "read_id",
]

# The client of NATS comes with it.
__getattr__ = lazy_names(__name__, {"DistributedRuntime": ".distributed_runtime"})
