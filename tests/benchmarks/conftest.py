"""Benchmarks of kernels: `pytest tests/benchmarks --benchmark-only`.

In other runs each is called once, on little, to see that it still works.
"""

import pytest


@pytest.fixture(scope="session")
def measured(request: pytest.FixtureRequest) -> bool:
    """Whether anything is measured, or only called."""
    return bool(request.config.getoption("benchmark_only"))
