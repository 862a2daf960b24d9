"""How to reach etcd, read from Dynamo's environment names; and who is refused by a real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.security.certificates import Authority
from support.servers.etcd import EtcdServer

from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.kv_stores import EtcdConfig, EtcdStore, StoreError

pytestmark = pytest.mark.usefixtures("leaves_no_task")


def test_the_defaults() -> None:
    config = EtcdConfig.from_environment({})
    assert config.endpoints == ("http://localhost:2379",)
    assert (config.lease_ttl_s, config.startup_timeout_s) == (10.0, 120.0)


def test_every_variable_is_read() -> None:
    config = EtcdConfig.from_environment(
        {
            "ETCD_ENDPOINTS": "https://a:1, https://[::1]:2,c",
            "ETCD_AUTH_USERNAME": "root",
            "ETCD_AUTH_PASSWORD": "secret",
            "ETCD_AUTH_CA": "/ca",
            "ETCD_AUTH_CLIENT_CERT": "/cert",
            "ETCD_AUTH_CLIENT_KEY": "/key",
            "ETCD_LEASE_TTL": "7",
            "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS": "3",
        }
    )
    addresses = [config.address(endpoint) for endpoint in config.endpoints]
    assert addresses == [(True, "a:1"), (True, "[::1]:2"), (True, "c:2379")]
    assert (config.username, config.password) == ("root", "secret")
    assert (config.ca, config.cert, config.key) == ("/ca", "/cert", "/key")
    assert (config.lease_ttl_s, config.startup_timeout_s) == (7.0, 3.0)
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"ETCD_ENDPOINTS": "ftp://a:1"}, "ETCD_ENDPOINTS: 'ftp://a:1' is not the address"),
        ({"ETCD_ENDPOINTS": "http://a:x"}, "is not the address"),
        ({"ETCD_ENDPOINTS": "http://u:pw@a:1"}, "http://u:\\*\\*\\*@a:1' is not the address"),
        ({"ETCD_ENDPOINTS": "http://a/path"}, "is not the address"),
        ({"ETCD_AUTH_USERNAME": "u"}, "ETCD_AUTH_USERNAME: needs ETCD_AUTH_PASSWORD"),
        ({"ETCD_AUTH_PASSWORD": "p"}, "ETCD_AUTH_PASSWORD: needs ETCD_AUTH_USERNAME"),
        ({"ETCD_AUTH_CLIENT_CERT": "c", "ETCD_ENDPOINTS": "a:1"}, "needs ETCD_AUTH_CLIENT_KEY"),
        ({"ETCD_LEASE_TTL": "soon"}, "ETCD_LEASE_TTL: 'soon' is no number of seconds"),
        ({"ETCD_LEASE_TTL": "-1"}, "is no number of seconds"),
        (
            {"ETCD_AUTH_CA": "/ca", "ETCD_ENDPOINTS": "http://a:1"},
            "certificates are given for https://",
        ),
    ],
)
def test_what_is_no_good_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EtcdConfig.from_environment(environ)


async def test_a_certificate_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="ETCD_AUTH_CA"):
        EtcdStore(EtcdConfig(("a:1",), ca="/nowhere/ca.pem"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd that asks for a name: root, and `reader`, who may read one prefix."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        for words in (
            "user add root:hush", "user grant-role root root", "role add readers",
            "role grant-permission readers read --prefix v1/", "user add reader:hush",
            "user grant-role reader readers", "auth enable",
        ):  # fmt: skip
            server.control(*words.split())
        yield server


async def test_a_user_with_the_right_password_is_let_in(guarded: EtcdServer) -> None:
    store = EtcdStore(EtcdConfig((guarded.url,), username="root", password="hush"))
    bucket = store.bucket("v1/x")
    revision = await bucket.put("a", b"1")
    watch = bucket.watch()
    await anext(watch)
    # Any change of users makes the tokens given so far stale, as their age does.
    guarded.control("--user", "root:hush", "user", "add", "another:hush")
    assert await bucket.replace("a", b"2", revision) is not None
    await anext(watch)
    await watch.aclose()
    await store.close()


@pytest.mark.parametrize(
    ("user", "password", "message"),
    [
        ("root", "wrong", "authentication failed, invalid user ID or password"),
        ("nobody", "hush", "authentication failed, invalid user ID or password"),
        ("reader", "hush", "permission denied"),
        (None, None, "user name is empty"),
    ],
)
async def test_others_are_refused_and_told_why(
    guarded: EtcdServer, user: str | None, password: str | None, message: str
) -> None:
    config = EtcdConfig((guarded.url,), username=user, password=password, timeout_s=0.5)
    store = EtcdStore(config)
    with pytest.raises(StoreError, match=message) as caught:
        await store.bucket("v1/x").put("a", b"1")
    assert not caught.value.transient
    assert "hush" not in str(caught.value) and "wrong" not in str(caught.value)
    await store.close()


async def test_a_name_that_nobody_asks_for_is_no_hindrance(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        store = EtcdStore(EtcdConfig((server.url,), username="root", password="hush"))
        assert await store.bucket("v1/x").put("a", b"1") > 0
        await store.close()


async def test_over_tls_both_sides_show_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    cert, key = authority.issue("etcd")
    ours = authority.issue("router")
    with EtcdServer(
        tmp_path, "--cert-file", cert, "--key-file", key,
        "--trusted-ca-file", authority.ca, "--client-cert-auth", scheme="https",
    ) as server:  # fmt: skip
        good = EtcdStore(EtcdConfig((server.url,), ca=authority.ca, cert=ours[0], key=ours[1]))
        assert await good.bucket("v1/x").put("a", b"1") > 0
        await good.close()
        text = Path(authority.ca).read_text()
        for config in (
            EtcdConfig((server.url,), ca=text, timeout_s=0.5),
            EtcdConfig((server.url,), ca=Authority(tmp_path / "other").ca, timeout_s=0.5),
        ):
            store = EtcdStore(config)
            with pytest.raises(StoreError, match=f"etcd at {server.url}: "):
                await store.bucket("v1/x").get("a")
            await store.close()
