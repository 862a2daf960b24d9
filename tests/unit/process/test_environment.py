"""Variables with our prefix that are no settings."""

import pytest

from dynamo_router.process.environment import unknown_names
from dynamo_router.process.settings import ENV_PREFIX

KNOWN = {"DYNAMO_ROUTER_PORT", "DYNAMO_ROUTER_MAX_ATTEMPTS", "DYNAMO_ROUTER_INDEX_SNAPSHOT"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DYNAMO_ROUTER_PORT", "1", None),
        ("DYNAMO_ROUTER_PROT", "1", "is no setting; did you mean DYNAMO_ROUTER_PORT?"),
        ("DYNAMO_ROUTER_MAX_ATEMPTS", "1", "is no setting; did you mean DYNAMO_ROUTER_MAX_ATT"),
        ("DYNAMO_ROUTER_XQZ", "1", "DYNAMO_ROUTER_XQZ is no setting"),
        ("DYNAMO_ROUTER_XQZ", "", None),
        ("DYN_ROUTER_NONSENSE", "1", None),  # Dynamo's, of which we know a part
        ("DYNAMO_ROUTER_INDEX_ROUNDS", "1", None),  # of the command `bench index`
        ("DYNAMO_ROUTER_INDEX_SNAPSHT", "f", "did you mean DYNAMO_ROUTER_INDEX_SNAPSHOT?"),
        # Of a Kubernetes Service that is called dynamo-router.
        ("DYNAMO_ROUTER_PORT", "tcp://10.0.0.1:8000", "it is the address of a Kubernetes Service"),
        ("DYNAMO_ROUTER_SERVICE_HOST", "10.0.0.1", None),
        ("DYNAMO_ROUTER_SERVICE_PORT_GRPC", "8000", None),
        ("DYNAMO_ROUTER_PORT_8000_TCP", "tcp://10.0.0.1:8000", None),
        ("DYNAMO_ROUTER_PORT_8000_TCP_ADDR", "10.0.0.1", None),
        ("DYNAMO_ROUTER_ADMIN_SERVICE_HOST", "10.0.0.1", None),
    ],
)
def test_what_is_said_of_a_variable(name: str, value: str, said: str | None) -> None:
    others = (f"{ENV_PREFIX}INDEX_",)
    found = unknown_names({name: value}, KNOWN, prefix=ENV_PREFIX, others=others)
    assert (found == []) if said is None else (len(found) == 1 and said in found[0])
