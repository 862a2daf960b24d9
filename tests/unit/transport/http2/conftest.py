"""Everything here needs the library, which is an ordinary dependency of ours."""

import pytest

from dynamo_router.transport.http2 import load_library


@pytest.fixture(autouse=True)
def library() -> str:
    found = load_library()
    if found.version is None:
        pytest.skip(found.reason)
    return found.version
