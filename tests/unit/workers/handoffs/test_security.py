"""Hosts that a parcel names are those of the worker that handed it over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.workers.handoffs import foreign_host


@pytest.mark.parametrize(
    "parcel",
    [
        b'{"remote_host": "10.0.0.5", "remote_port": 5600, "remote_block_ids": [[1, 2]]}',
        b'{"ctx_info_endpoint": "tcp://10.0.0.5:7000"}',
        b'{"a": [{"bootstrap_host": "10.0.0.5"}]}',
        b'{"remote_host": null}',
        b'{"model": "a host"}',
        b"\xff opaque",
    ],
)
def test_these_name_no_other(parcel: bytes) -> None:
    assert foreign_host(parcel, "10.0.0.5:8000") is None


@pytest.mark.parametrize(
    ("parcel", "host"),
    [
        (b'{"remote_host": "169.254.169.254"}', "169.254.169.254"),
        (b'{"a": [[{"host": "10.0.0.6"}]]}', "10.0.0.6"),
        (b'{"remote_bootstrap_addr": "http://user@10.0.0.6:8998"}', "10.0.0.6"),
        (b'{"remote_host": ""}', ""),
        (b'{"ctx_info_endpoint": ["tcp://10.0.0.5:1", "tcp://10.0.0.6:1"]}', "10.0.0.6"),
        (b'{"remote_host": {"x": 1}}', "?"),
        (b'{"remote_host": "localhost"}', "localhost"),
        (b'[[[[[[[[[{"host": "10.0.0.5"}]]]]]]]]]', "?"),
    ],
)
def test_these_do(parcel: bytes, host: str) -> None:
    assert foreign_host(parcel, "10.0.0.5:8000") == host


def test_loopback_has_several_names() -> None:
    assert foreign_host(b'{"remote_host": "localhost"}', "127.0.0.1:8000") is None


@given(st.binary(max_size=200))
def test_any_bytes_can_be_looked_at(parcel: bytes) -> None:
    foreign_host(parcel, "10.0.0.5:8000")
