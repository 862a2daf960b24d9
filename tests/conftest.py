"""What all tests share."""

import gc
import logging
from collections.abc import Iterator
from os import environ

import pytest
from hypothesis import HealthCheck, settings
from support.machines import lengthen

THOROUGH = environ.get("HYPOTHESIS_PROFILE") == "thorough"

# How long an example takes says how busy the machine is. A run that gates a change judges that
# change: it draws the same examples each time. The thorough runs are those that look for new ones.
settings.register_profile(
    "untimed",
    deadline=None,
    derandomize=not THOROUGH,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A shuffled order, but the same each time: it judges the change too, not its luck."""
    if not THOROUGH and config.getoption("randomly_seed", None) == "default":
        config.option.randomly_seed = 1
    # Benchmarks are measured when they are asked for; else they are called once.
    if not config.getoption("benchmark_only", False):
        config.option.benchmark_disable = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    classes = {getattr(item, "cls", None) for item in items if item.name == "runTest"}
    machines = [cls for cls in classes if hasattr(cls, "settings")]
    try:
        lengthen(machines, environ.get("HYPOTHESIS_PROFILE", ""))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(autouse=True)
def no_collection_in_state_machines(request: pytest.FixtureRequest) -> Iterator[None]:
    """CPython 3.11 fails ("AST constructor recursion depth mismatch") if a garbage collection
    lets Python code in while ast.parse converts a tree, which Hypothesis asks for through
    inspect.getsource before it runs a state machine.
    """
    if request.node.name != "runTest":
        yield
        return
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class _Complaints(logging.Handler):
    """Collects what asyncio only logs: tasks destroyed or failed unseen, calls from other threads.

    That a callback was slow is a warning and says how busy the machine is: it is left alone.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = self.format(record)
        # gRPC has one poller for all loops of a process, and may wake that of an earlier test.
        if "PollerCompletionQueue" in message and "Event loop is closed" in message:
            return
        self.messages.append(message)


@pytest.fixture(autouse=True)
def asyncio_does_not_complain() -> Iterator[None]:
    complaints = _Complaints()
    logging.getLogger("asyncio").addHandler(complaints)
    yield
    logging.getLogger("asyncio").removeHandler(complaints)
    assert complaints.messages == []
