"""Envoy as a gateway that asks an endpoint picker, with the endpoints in a cluster of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.free_port import free_port
from support.servers.grpc_peers.envoy import EXTENSIONS, HTTP2, TYPES, Envoy, address_of

from dynamo_router.frontend.epp.exchange import (
    DESTINATION,
    NAMESPACE,
    SERVED,
    SUBSET,
    SUBSET_NAMESPACE,
)

DUPLEX, BUFFERED = "FULL_DUPLEX_STREAMED", "BUFFERED"
PLAIN = "/plain"
"""The prefix of paths that go to the endpoints in turn, without the picker."""


class Gateway(Envoy):
    """In front of `endpoints`, which the picker at `picker`, HOST:PORT, chooses among. Without any
    it goes to the one address that the picker names, as clusters of type ORIGINAL_DST do."""

    def __init__(
        self,
        folder: Path,
        picker: str,
        endpoints: Sequence[str],
        *,
        request_mode: str = DUPLEX,
        answer_mode: str = DUPLEX,
        subset: str = "",
        tls: bool = False,
        trailers: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        filters = [_external_processing(request_mode, answer_mode)]
        if subset:
            filters.insert(0, _metadata(subset))
        manager = {
            "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "in",
            "http_protocol_options": {"enable_trailers": trailers},
            "route_config": {"virtual_hosts": [_virtual_host(retries=not trailers)]},
            "http_filters": [*filters, _filter("router", "router.v3.Router")],
        }
        chain = {"filters": [{"name": "http", "typed_config": manager}]}
        listener = {"name": "in", "address": address_of("127.0.0.1", port)}
        clusters = [_picker_cluster(picker, tls), _pool(endpoints, trailers)]
        listeners = [listener | {"filter_chains": [chain]}]
        config = {"static_resources": {"listeners": listeners, "clusters": clusters}}
        super().__init__(folder, port, config)

    @property
    def url(self) -> str:
        return f"http://{self.address}"


def _filter(name: str, kind: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": f"{TYPES}.filters.http.{kind}", **config}}


def _external_processing(request_mode: str, answer_mode: str) -> dict[str, Any]:
    return _filter(
        "picker",
        "ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
        message_timeout="10s",
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": request_mode,
            "response_body_mode": answer_mode,
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        metadata_options={
            "forwarding_namespaces": {"untyped": [NAMESPACE, SUBSET_NAMESPACE]},
            "receiving_namespaces": {"untyped": [NAMESPACE]},
        },
    )


def _metadata(subset: str) -> dict[str, Any]:
    """A filter that names the endpoints that a request may go to."""
    value = {"metadata_namespace": SUBSET_NAMESPACE, "value": {SUBSET: subset}}
    return _filter("subset", "set_metadata.v3.Config", metadata=[value])


def _virtual_host(*, retries: bool) -> dict[str, Any]:
    """Envoy 1.40 sends the body of a request twice that has trailers, a filter of this kind and a
    policy of retries: it goes on with what it keeps for a retry."""
    route: dict[str, Any] = {"cluster": "pool", "timeout": "0s"}
    if retries:
        on = "connect-failure,reset-before-request"
        route["retry_policy"] = {"retry_on": on, "num_retries": 2}
    off = {"@type": f"{TYPES}.filters.http.ext_proc.v3.ExtProcPerRoute", "disabled": True}
    plain = {
        "match": {"prefix": f"{PLAIN}/"},
        "route": route | {"prefix_rewrite": "/"},
        "typed_per_filter_config": {"picker": off},
    }
    routes = [plain, {"match": {"prefix": "/"}, "route": route}]
    return {"name": "all", "domains": ["*"], "routes": routes}


def _cluster(name: str, endpoints: Sequence[str], **more: Any) -> dict[str, Any]:
    hosts = (endpoint.rpartition(":") for endpoint in endpoints)
    found = [{"endpoint": {"address": address_of(host, int(port))}} for host, _, port in hosts]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": found}]}
    limits = {"max_connections": 10_000, "max_pending_requests": 10_000, "max_requests": 10_000}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": assignment,
        **more,
    }


def _picker_cluster(address: str, tls: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"typed_extension_protocol_options": HTTP2}
    if tls:  # as gateways do: whoever has made the certificate is not asked
        kind = f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext"
        config = {"@type": kind, "common_tls_context": {"alpn_protocols": ["h2"]}}
        more["transport_socket"] = {"name": "tls", "typed_config": config}
    return _cluster("picker", [address], **more)


def _pool(endpoints: Sequence[str], trailers: bool) -> dict[str, Any]:
    """A cluster whose hosts are chosen by name; without a choice they take turns."""
    if not endpoints:
        header = {"use_http_header": True, "http_header_name": DESTINATION}
        return {
            "name": "pool",
            "type": "ORIGINAL_DST",
            "connect_timeout": "1s",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": header,
        }
    policies = f"{EXTENSIONS}.load_balancing_policies"
    turns = _policy("turns", f"{policies}.round_robin.v3.RoundRobin")
    override = _policy(
        "override",
        f"{policies}.override_host.v3.OverrideHost",
        override_host_sources=[
            {"metadata": {"key": NAMESPACE, "path": [{"key": DESTINATION}]}},
            {"header": DESTINATION},
        ],
        selected_host_key={"key": NAMESPACE, "path": [{"key": SERVED}]},
        fallback_policy={"policies": [turns]},
    )
    more: dict[str, Any] = {}
    if trailers:
        name = f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions"
        options = {"http_protocol_options": {"enable_trailers": True}}
        kind = {"@type": f"type.googleapis.com/{name}", "explicit_http_config": options}
        more["typed_extension_protocol_options"] = {name: kind}
    return _cluster(
        "pool",
        endpoints,
        lb_policy="LOAD_BALANCING_POLICY_CONFIG",
        load_balancing_policy={"policies": [override]},
        **more,
    )


def _policy(name: str, kind: str, **config: Any) -> dict[str, Any]:
    typed = {"@type": f"type.googleapis.com/{kind}", **config}
    return {"typed_extension_config": {"name": name, "typed_config": typed}}
