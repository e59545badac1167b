"""What the bench takes for a disk, and whether pages that it drops from the page cache are gone."""

import mmap
import os
from pathlib import Path

import pytest

from bench.disk import PageCache, mount_of, refuse_memory, storage_bytes_read
from bench.errors import BenchError

TABLE = """\
22 1 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:25 / /tmp rw,relatime - tmpfs tmpfs rw
29 27 8:1 / /tmp/a\\040disk rw,relatime shared:1 - xfs /dev/sda1 rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return path


@pytest.mark.parametrize(
    ("path", "kind"), [("/var/lib", "ext4"), ("/tmp/bench", "tmpfs"), ("/tmp/a disk/bench", "xfs"), ("/tmpx", "ext4")]
)
def test_the_innermost_mount_counts(table: Path, path: str, kind: str) -> None:
    mount = mount_of(Path(path), table)
    assert mount is not None and mount.kind == kind


def test_a_directory_in_memory_is_refused_and_one_on_a_disk_is_not(table: Path) -> None:
    with pytest.raises(BenchError, match="is on a tmpfs, which is memory: name a directory on a disk with --dir"):
        refuse_memory(Path("/tmp/bench"), table)
    refuse_memory(Path("/tmp/a disk/bench"), table)


def _on_a_disk(directory: Path) -> PageCache:
    try:
        refuse_memory(directory)
    except BenchError as error:
        pytest.skip(f"the tests' temporary directory is on no disk (--basetemp=DIR names another): {error}")
    cache = PageCache([directory])
    if not cache.can_drop:
        pytest.skip("this system has no posix_fadvise, which drops files from the page cache")
    return cache


def test_files_that_were_read_are_in_the_page_cache_and_gone_after_a_drop(tmp_path: Path) -> None:
    cache = _on_a_disk(tmp_path)
    (tmp_path / "one").write_bytes(os.urandom(1 << 20))
    os.link(tmp_path / "one", tmp_path / "two")  # counted once
    assert cache.resident() == 1 << 20
    assert cache.drop() == 0
    assert cache.resident() == 0


def test_pages_that_are_mapped_and_touched_are_seen_to_stay(tmp_path: Path) -> None:
    cache = _on_a_disk(tmp_path)
    (tmp_path / "one").write_bytes(os.urandom(1 << 20))
    with (tmp_path / "one").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert len(view[: 1 << 19]) == 1 << 19
        stayed = cache.drop()
    assert stayed is not None and stayed >= 1 << 19
    assert cache.drop() == 0


def test_reading_what_was_dropped_is_counted_as_read_from_storage(tmp_path: Path) -> None:
    cache = _on_a_disk(tmp_path)
    (tmp_path / "one").write_bytes(os.urandom(1 << 20))
    cache.drop()
    before = storage_bytes_read([os.getpid()])
    (tmp_path / "one").read_bytes()
    after = storage_bytes_read([os.getpid()])
    assert before is not None and after is not None and after - before >= 1 << 20


def test_bytes_of_a_process_that_is_gone_are_not_known() -> None:
    assert storage_bytes_read([2**22 + 1]) is None
