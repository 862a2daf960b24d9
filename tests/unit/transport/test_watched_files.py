"""Files that are read again on change: by a clock and stamps that the test owns."""

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.transport.security.watched_files import FileStamp, FileWatch, WatchedFiles


class Disk:
    """One file: its contents, or an error instead; each write has a stamp of its own."""

    def __init__(self, text: str) -> None:
        self.stamp: FileStamp | None = None
        self.looks = self.reads = 0
        self.changes_while_read: str | None = None
        self.write(text)

    def write(self, text: str) -> None:
        self.text = text
        count = 0 if self.stamp is None else self.stamp.mtime_ns
        self.stamp = FileStamp(count + 1, len(text), 1)

    def stat(self, path: str) -> FileStamp | None:
        self.looks += 1
        return self.stamp

    def read(self) -> str:
        self.reads += 1
        text = self.text
        if self.changes_while_read is not None:
            changed, self.changes_while_read = self.changes_while_read, None
            self.write(changed)
        if text.startswith("bad"):
            raise ConfigError(text)
        return text


def watched(disk: Disk) -> WatchedFiles[str]:
    return WatchedFiles("word", ["f"], disk.read, stat=disk.stat)


def test_what_did_not_change_is_not_read_again() -> None:
    disk = Disk("one")
    files = watched(disk)
    assert (files.poll(), files.value, disk.reads) == (False, "one", 1)


def test_a_change_is_read_once_and_told() -> None:
    disk = Disk("one")
    files = watched(disk)
    heard: list[str] = []
    files.listeners.append(heard.append)
    disk.write("two")
    assert (files.poll(), files.poll()) == (True, False)
    assert (files.value, heard, files.reloads, disk.reads) == ("two", ["two"], 1, 2)


def test_a_bad_change_leaves_the_old_and_is_told_once() -> None:
    disk = Disk("one")
    files = watched(disk)
    disk.write("bad: no key")
    assert not files.poll() and not files.poll()
    assert (files.value, files.error, files.failures) == ("one", "bad: no key", 1)
    disk.write("three")
    assert files.poll()
    assert (files.value, files.error, files.reloads) == ("three", None, 1)


def test_a_file_that_is_gone_for_a_moment_is_read_when_it_is_back() -> None:
    disk = Disk("one")
    files = watched(disk)
    stamp, text, disk.stamp, disk.text = disk.stamp, disk.text, None, "bad: cannot read f"
    assert not files.poll() and files.value == "one"
    disk.stamp, disk.text = stamp, text
    assert files.poll() and files.value == "one"


def test_what_changes_while_it_is_read_is_read_once_more() -> None:
    disk = Disk("one")
    files = watched(disk)
    disk.write("half")
    disk.changes_while_read = "whole"
    assert not files.poll() and files.value == "one"
    assert files.poll() and files.value == "whole"


def test_a_bad_file_at_the_start_is_an_error() -> None:
    try:
        watched(Disk("bad: at once"))
    except ConfigError as error:
        assert str(error) == "bad: at once"
    else:
        raise AssertionError("a bad file was taken")


def test_files_are_looked_at_when_it_is_time() -> None:
    disk, clock = Disk("one"), ManualClock()
    watch = FileWatch(clock, interval_s=1.0)
    watch.files.append(watched(disk))
    looked = disk.looks
    watch.tick()
    assert disk.looks == looked
    clock.advance(1.0)
    watch.tick()
    watch.tick()
    assert disk.looks == looked + 1
