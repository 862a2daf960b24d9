"""Everything here needs the library, which is an ordinary dependency of ours."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.security.certificates import Authority

from dynamo_router.transport.http2 import load_library

LOOPS: dict[str, Callable[[Any], Any]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(autouse=True)
def library() -> str:
    found = load_library()
    if found.version is None:
        pytest.skip(found.reason)
    return found.version


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return LOOPS[request.param]


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "others", "others")
