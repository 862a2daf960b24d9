"""Calls to a Kubernetes API server: credentials, time limits, and what its refusals mean."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from ....base.errors import UNREADABLE, ConfigError
from ....base.urls import redact_url
from ....process.settings import bad_setting
from ....transport.security import read_file
from ..store import StoreError
from .kubernetes_config import KubernetesConfig

try:  # an extra: who has no Kubernetes needs none of it
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.client.rest import RESTClientObject
    from kubernetes_asyncio.config import ConfigException, load_kube_config
except ImportError as error:  # pragma: no cover
    text = "needs more packages: pip install 'dynamo-router[kubernetes]'"
    raise ConfigError(f"discovery over Kubernetes {text} ({error})", key="discovery") from None

_MAX_LINE_BYTES = 8 << 20
"""The longest line of a watch that is read: etcd under the API server takes objects of 1.5 MiB."""
_REFUSALS = (400, 401, 403, 404, 405, 413, 415, 422)


class ApiError(StoreError):
    """The API server says no (`status`, 0 without an answer), or asks to wait `retry_after_s`."""

    def __init__(
        self, message: str, status: int = 0, *, transient: bool = True, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, transient=transient)
        self.status = status
        self.retry_after_s = retry_after_s


class KubernetesApi:
    """One client of one API server. Connects when it is first used."""

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._access: _Access | None = None
        self._retired: _Access | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def call(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        """The answer's JSON. ApiError if there is none, or it is a refusal."""
        response = await self._request(
            method, path, params, body, content_type, self._config.timeout_s
        )
        async with response:
            try:
                async with asyncio.timeout(self._config.timeout_s):
                    return msgspec.json.decode(await response.read())
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._unreachable(error) from None
            except UNREADABLE:
                raise ApiError(f"{self._shown}: the answer is not JSON") from None

    async def lines(
        self, path: str, params: dict[str, str], lasts_s: float
    ) -> AsyncGenerator[Any, None]:
        """The lines of a watch until the server ends it, each as JSON. ApiError as `call`."""
        response = await self._request(
            "GET", path, params, None, "application/json", lasts_s + self._config.timeout_s
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(response)
            rest = b""
            try:
                async for data in response.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    if len(rest) > _MAX_LINE_BYTES:
                        raise ApiError(f"{self._shown}: a line of a watch has no end")
                    for line in filter(None, lines):
                        yield msgspec.json.decode(line)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._unreachable(error) from None
            except UNREADABLE:
                raise ApiError(f"{self._shown}: a line of a watch is not JSON") from None

    async def close(self) -> None:
        self._closed = True
        for access in (self._access, self._retired):
            if access is not None:
                await access.client.close()
        self._access = self._retired = None
        await asyncio.sleep(0)  # closed transports leave the loop one turn later

    @property
    def _shown(self) -> str:
        """Where the server is, for people."""
        host = self._access.configuration.host if self._access is not None else None
        return f"Kubernetes at {redact_url(host or self._config.server or '?')}"

    async def _request(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None,
        body: Any,
        content_type: str,
        timeout_s: float,
    ) -> Any:
        """A response that says yes, its body not read yet."""
        refused: _Access | None = None
        while True:
            access = await self._open(refused)
            try:
                response = await access.client.request(
                    method, f"{access.configuration.host}{path}", params,
                    {"Accept": "application/json", "Content-Type": content_type, **access.headers},
                    body,
                    _preload_content=False,
                    _request_timeout=aiohttp.ClientTimeout(
                        total=timeout_s, sock_connect=self._config.timeout_s
                    ),
                )  # fmt: skip
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._unreachable(error) from None
            if response.status == 401 and refused is None:
                response.release()
                refused = access  # the token may have been replaced: it is read again
            elif 200 <= response.status < 300:
                return response
            else:
                raise await self._refusal(response)

    async def _refusal(self, response: Any) -> ApiError:
        async with response:
            text = response.reason or ""
            with contextlib.suppress(Exception):  # whatever it is, it is no reason given
                status = msgspec.json.decode(await response.content.read(1 << 16))
                text = str(status.get("message") or text)
            after = response.headers.get("Retry-After", "")
        status = response.status
        return ApiError(
            f"{self._shown} answers {status}: {text[:300]}",
            status,
            transient=status not in _REFUSALS,
            retry_after_s=min(60.0, float(after)) if after.isdecimal() else 0.0,
        )

    def _unreachable(self, error: BaseException) -> ApiError:
        refused = isinstance(error, aiohttp.ClientConnectorCertificateError)
        text = str(error) or "no answer in time"
        return ApiError(f"{self._shown}: {text[:300]}", transient=not refused)

    async def _open(self, refused: "_Access | None") -> "_Access":
        """How to ask. If it is as it was when we were refused: made anew, by what the kubeconfig
        says by now."""
        if self._closed:
            raise ApiError("the connection to Kubernetes is closed", transient=False)
        async with self._opening:
            if self._access is None or self._access is refused:
                configuration = await self._configuration()
                try:
                    client = RESTClientObject(configuration)
                except (OSError, ssl.SSLError) as error:
                    text = f"certificates of Kubernetes: {error}"
                    raise bad_setting("discovery", text) from None
                # The one before may have answers under way, the one before that has none any more.
                retired, self._retired = self._retired, self._access
                self._access = _Access(configuration, client)
                if retired is not None:
                    await retired.client.close()
            self._access.headers = await self._authorization(self._access.configuration)
            return self._access

    async def _configuration(self) -> Any:
        configuration = Configuration()
        # The cluster's certificates are not ours to make: many lack what Python 3.13 would demand.
        configuration.disable_strict_ssl_verification = True
        if self._config.server is not None:
            configuration.host = self._config.server
            configuration.ssl_ca_cert = self._config.ca
            return configuration
        try:
            await load_kube_config(
                config_file=self._config.kubeconfig,
                client_configuration=configuration,
                persist_config=False,
            )
        except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            raise bad_setting("KUBECONFIG", str(error)[:300]) from None
        return configuration

    async def _authorization(self, configuration: Any) -> dict[str, str]:
        if self._config.token_file is None:
            key = await configuration.get_api_key_with_prefix("BearerToken")
            return {"authorization": str(key)} if key else {}
        try:
            token = read_file(self._config.token_file, "service account").decode().strip()
        except (ConfigError, UnicodeDecodeError) as error:
            raise ApiError(f"{self._shown}: {error}", transient=False) from None
        return {"authorization": f"Bearer {token}"}


@dataclass(eq=False, slots=True)
class _Access:
    """A session with a server, and the credentials that go with each request."""

    configuration: Any
    client: Any
    headers: dict[str, str] = field(default_factory=dict)
