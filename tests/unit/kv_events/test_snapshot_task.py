"""The task that saves the index goes on, whatever is wrong with the file or the writing of it."""

import struct
from pathlib import Path

import pytest
from support.polling import until

from dynamo_router.indexer.event_index import EventIndex, SnapshotHead
from dynamo_router.kv_events import SnapshotTask, snapshot_task

HEAD = SnapshotHead(block_size=16, subject="s")


@pytest.fixture
def index():
    made = EventIndex()
    yield made
    made.close()


@pytest.mark.parametrize("error", [OSError("full"), struct.error("too large"), MemoryError()])
async def test_a_failure_of_any_kind_is_counted_and_the_next_save_is_tried(
    index: EventIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    task = SnapshotTask(index, tmp_path / "index", HEAD, interval_s=0.001)

    def fail(*_: object) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(snapshot_task, "save_index", fail)
        await task.start()
        await until(lambda: task.failures >= 3)
        assert task.saves == 0
    await until(lambda: task.saves >= 2)
    await task.close()
    assert (tmp_path / "index").exists()


async def test_whatever_is_wrong_with_the_file_the_service_starts(
    index: EventIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = SnapshotTask(index, tmp_path / "index", HEAD, interval_s=60.0)

    def fail(*_: object) -> int:
        raise OverflowError("a number in it")

    monkeypatch.setattr(snapshot_task, "load_index", fail)
    await task.start()
    assert (task.failures, task.restored) == (1, 0)
    await task.close()
    assert task.saves == 1
