"""The recorder: bounded, counted, silent but for one line, and one salt for all processes."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.observability.recorded import BLOCK, SALT, ended, lines_of
from support.polling import until

from dynamo_router.base.errors import ConfigError
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.server.record import Recorder, recorder_of
from dynamo_router.server.record import recorder as module
from dynamo_router.server.record.recorder import shared_salt, with_tag


@pytest.fixture
async def router() -> AsyncIterator[KvRouter]:
    with KvRouter(KvRouterConfig(block_size=BLOCK, use_kv_events=False)) as router:
        router.add_worker(7, total_kv_blocks=99, max_num_batched_tokens=2048)
        yield router


def new_recorder(path: Path, **more: Any) -> Recorder:
    return Recorder(path, SALT, **{"max_bytes": 1 << 20, "kept": 3, **more})


async def test_lines_are_written_on_a_thread_and_the_rest_at_the_end(
    tmp_path: Path, router: KvRouter
) -> None:
    recorder = new_recorder(tmp_path / "a.jsonl.gz")
    file = recorder.file_of("", router)
    recorder.start()
    recorder.put(file, *ended())
    await until(lambda: recorder.lines["written"] == 1)
    recorder.put(file, *ended())
    await recorder.close()
    await recorder.close()
    (header,), lines = lines_of(tmp_path / "a.jsonl.gz")
    assert len(lines) == 2 == recorder.lines["written"]
    assert recorder.bytes == (tmp_path / "a.jsonl.gz").stat().st_size
    assert header["workers"] == [{"worker": "7", "blocks": 99, "batched_tokens": 2048}]
    assert header["policy"] == "forecast"


async def test_what_finds_no_place_is_dropped_and_counted(
    tmp_path: Path, router: KvRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 3)
    recorder = new_recorder(tmp_path / "a.jsonl")
    file = recorder.file_of("", router)
    for _ in range(5):  # nothing takes them yet
        recorder.put(file, *ended())
    assert recorder.lines == {"queue_full": 2}
    monkeypatch.setattr(module, "MAX_BYTES", 900)  # lines have some 300
    monkeypatch.setattr(module, "MAX_LINES", 100)
    recorder.put(file, *ended())
    assert recorder.lines == {"queue_full": 3}
    recorder.start()
    await recorder.close()
    assert recorder.lines == {"queue_full": 3, "written": 3}


async def test_a_full_disk_is_logged_once_and_counted_until_it_has_room(
    tmp_path: Path, router: KvRouter
) -> None:
    full = True

    def write(file: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(file, data)

    recorder = new_recorder(tmp_path / "a.jsonl", write=write)
    file = recorder.file_of("", router)
    recorder.start()
    with capture_logs() as logs:
        for count in (1, 2, 3):
            recorder.put(file, *ended())
            recorder._wake.set()
            await until(lambda count=count: recorder.lines["disk_error"] == count)
        full = False
        recorder.put(file, *ended())
        await recorder.close()
    assert recorder.lines == {"disk_error": 3, "written": 1}
    texts = [(line["event"], line.get("error")) for line in logs]
    assert texts == [
        ("requests are not recorded", "No space left on device"),
        ("requests are recorded again", None),
    ]
    assert len(lines_of(tmp_path / "a.jsonl")[1]) == 1


async def test_a_request_that_makes_no_line_costs_no_other(
    tmp_path: Path, router: KvRouter
) -> None:
    recorder = new_recorder(tmp_path / "a.jsonl")
    file = recorder.file_of("", router)
    bad = Prompt([2**40] * 40, BLOCK)
    with capture_logs() as logs:
        for prompt in (bad, Prompt([1] * 40, BLOCK), bad):
            recorder.put(file, *ended(prompt=prompt))
        recorder.start()
        await recorder.close()
    assert recorder.lines == {"failed": 2, "written": 1}
    assert [line["event"] for line in logs] == ["a request cannot be recorded"]


async def test_each_model_has_a_file_and_each_size_of_its_blocks(
    tmp_path: Path, router: KvRouter
) -> None:
    recorder = new_recorder(tmp_path / "a.jsonl.gz")
    one, two = recorder.file_of("org/tiny", router), recorder.file_of("big", router)
    assert one is recorder.file_of("org/tiny", router)
    with KvRouter(KvRouterConfig(block_size=32, use_kv_events=False)) as other:
        three = recorder.file_of("big", other)
    paths = [file.path.name for file in (one, two, three) if file is not None]
    assert paths == ["a-org_tiny.jsonl.gz", "a-big.jsonl.gz", "a-big-32.jsonl.gz"]


async def test_models_beyond_the_bound_are_counted(
    tmp_path: Path, router: KvRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 1)
    recorder = new_recorder(tmp_path / "a.jsonl")
    recorder.file_of("one", router)
    file = recorder.file_of("two", router)
    assert file is None
    recorder.put(file, *ended())
    assert recorder.lines == {"queue_full": 1}


def test_processes_that_meet_have_one_salt(tmp_path: Path) -> None:
    one, two = shared_salt(tmp_path), shared_salt(tmp_path)
    assert one.name("a") == two.name("a") and one.began_at == two.began_at
    assert [path.name for path in tmp_path.iterdir()] == ["record-key"]
    assert (tmp_path / "record-key").stat().st_mode & 0o777 == 0o600
    assert shared_salt(None).name("a") != shared_salt(None).name("a")


def test_a_tag_stands_before_the_endings() -> None:
    assert with_tag(Path("x/a.jsonl.gz"), "1") == Path("x/a-1.jsonl.gz")
    assert with_tag(Path("a"), "../b c") == Path("a-.._b_c")


def test_nothing_is_recorded_unless_asked_for() -> None:
    assert ObservabilityConfig().record is None
    assert recorder_of(None, max_mb=1, kept=1) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "is a folder: name a file in it"),
        ("none/a.jsonl", "no such folder"),
        ("pipe", "is no ordinary file"),
    ],
)
def test_a_path_that_cannot_be_a_record(tmp_path: Path, path: str, reason: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=reason) as caught:
        recorder_of(str(tmp_path / path), max_mb=1, kept=1)
    assert caught.value.key == "record"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="its folder is not writable"):
            recorder_of(str(tmp_path / "a.jsonl"), max_mb=1, kept=1)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"record_max_mb": 0.0}, "record_max_mb"),
        ({"record_max_mb": float("nan")}, "record_max_mb"),
        ({"record_files": 0}, "record_files"),
        ({"record": ""}, "record"),
    ],
)
def test_bad_settings_are_named(settings: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        ObservabilityConfig(**settings)
