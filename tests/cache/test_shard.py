from __future__ import annotations

import errno
import mmap
import os

import pytest

from cache import DiskError, StoreDamaged, StoreNotFound
from cache import shard as module
from cache.environment import LOCK_SUFFIX, Environment, create
from cache.index import Entry
from cache.manifest import Shard
from cache.record import encode
from cache.shard import SealedShard, file_checksum, seal
from cache.snapshot import load_index
from cache.states import FAILURE, REPLACED


@pytest.fixture
def fill(tmp_path):
    """Make an open shard of these states, in several commits, and seal it."""

    def make(states: dict[bytes, tuple[int, bytes]], commits: int = 3) -> Shard:
        path = tmp_path / Shard(0).file
        create(path)
        opened = Environment.acquire(path, writable=True)
        items = list(states.items())
        for start in range(commits):
            opened.write(lambda view, s=start: [view.put(k, f, v) for k, (f, v) in items[s::commits]])
        try:
            return seal(tmp_path, Shard(0), opened)
        finally:
            opened.release(writable=True)

    return make


@pytest.fixture
def states(make):
    """Records of many sizes, failures short and long, equal failures."""
    states = {f"r{i}".encode(): (0, encode(make(f"r{i}", n=i % 7, d=8 + i * 40), "float32")) for i in range(30)}
    states |= {f"f{i}".encode(): (FAILURE, b"x" * (i % 3 * 1500)) for i in range(1, 9)}
    states[b"marked"] = (REPLACED, states[b"r3"][1])
    return states


def test_every_value_lies_where_the_index_says(fill, states, tmp_path):
    shard = fill(states)
    data = (tmp_path / shard.file).read_bytes()
    index = load_index(tmp_path, shard)
    located = dict(index.states())
    assert located.keys() == states.keys()
    for key, (flags, value) in states.items():
        entry = located[key]
        assert data[entry.offset : entry.offset + entry.length] == value and entry.flags == flags
        if not flags & FAILURE:
            assert entry.offset % mmap.PAGESIZE == 16
    mapped = SealedShard.shared(tmp_path / shard.file, shard)
    assert all(mapped.value(located[key]) == value for key, (_, value) in states.items())


def test_what_the_manifest_says_of_it(fill, states, tmp_path):
    shard = fill(states)
    path = tmp_path / shard.file
    assert (shard.state, shard.records, shard.failures) == ("sealed", 31, 8)
    assert shard.bytes == os.path.getsize(path) and shard.checksum == f"{file_checksum(path):016x}"
    assert shard.index_bytes == os.path.getsize(tmp_path / shard.index_file)
    assert sorted(p.name for p in tmp_path.iterdir()) == [shard.index_file, shard.file, shard.file + LOCK_SUFFIX]
    assert path.stat().st_mode & 0o111 == 0


def test_sealing_can_be_done_again(fill, states, tmp_path):
    shard = fill(states)
    opened = Environment.acquire(tmp_path / shard.file, writable=True)
    assert seal(tmp_path, Shard(0), opened) == shard
    opened.release(writable=True)


def test_what_a_failed_transaction_left_at_the_end_is_cut_off(fill, tmp_path):
    path = tmp_path / Shard(0).file
    create(path)
    with open(path, "ab") as file:
        file.write(bytes(1 << 20))
    opened = Environment.acquire(path, writable=True)
    opened.write(lambda view: view.put(b"a", 0, bytes(3000)))
    assert seal(tmp_path, Shard(0), opened).bytes == os.path.getsize(path) < 1 << 20
    opened.release(writable=True)


@pytest.mark.parametrize("flags, value", [(FAILURE, b"{}"), (0, bytes(2048)), (FAILURE, b"")])
def test_a_single_value(fill, tmp_path, flags, value):
    shard = fill({b"k": (flags, value)}, commits=1)
    (entry,) = (entry for _, entry in load_index(tmp_path, shard).states())
    assert bytes(SealedShard.shared(tmp_path / shard.file, shard).value(entry)) == value


def test_a_wrong_guess_of_the_base_is_found_out(fill, states, tmp_path, monkeypatch):
    candidates = module._candidate_bases

    def also_wrong(*args):
        right = list(candidates(*args))
        yield from [right[0] - 4096, right[0] + 4096, *right]

    monkeypatch.setattr(module, "_candidate_bases", also_wrong)
    shard = fill(states)
    located = dict(load_index(tmp_path, shard).states())
    mapped = SealedShard.shared(tmp_path / shard.file, shard)
    assert all(mapped.value(located[key]) == value for key, (_, value) in states.items())

    monkeypatch.setattr(module, "_candidate_bases", lambda *args: list(candidates(*args))[:0])
    opened = Environment.acquire(tmp_path / shard.file, writable=True)
    with pytest.raises(StoreDamaged, match="not what the file holds"):
        seal(tmp_path, Shard(0), opened)
    opened.release(writable=True)


def test_one_mapping_a_process_while_it_is_used(fill, states, tmp_path):
    shard = fill(states)
    path, others = tmp_path / shard.file, set(module._MAPPED)
    one = SealedShard.shared(path, shard)
    assert SealedShard.shared(tmp_path / "." / shard.file, shard) is one
    view = one.value(Entry(0, 4096, 100, 0, 0))
    (key,) = set(module._MAPPED) - others
    del one
    assert key not in module._MAPPED and len(bytes(view)) == 100


def test_damage_is_seen_before_mapping(fill, states, tmp_path):
    shard = fill(states)
    path = tmp_path / shard.file
    mapped = SealedShard.shared(path, shard)
    with pytest.raises(StoreDamaged, match="behind the end"):
        mapped.value(Entry(0, shard.bytes - 10, 11, 0, 0))
    del mapped
    os.truncate(path, shard.bytes - 1)
    with pytest.raises(StoreDamaged, match=f"{path}.*{shard.bytes - 1} bytes"):
        SealedShard.shared(path, shard)
    path.unlink()
    with pytest.raises(StoreDamaged, match=f"{path}.*missing"):
        SealedShard.shared(path, shard)
    with pytest.raises(StoreNotFound, match="gone is not there any more: it was moved"):
        SealedShard.shared(tmp_path / "gone" / shard.file, shard)


def test_nothing_behind_the_end_is_touched(fill, states, tmp_path):
    shard = fill(states)
    mapped = SealedShard.shared(tmp_path / shard.file, shard)
    for offset in (shard.bytes - 10, shard.bytes, shard.bytes + 5000, 1 << 63):
        entry = Entry(0, offset, 11, 0, 0)
        for use in (mapped.value, mapped.read, mapped.is_new, mapped.mark, mapped.prefetch):
            with pytest.raises(StoreDamaged, match=f"{shard.file}.*behind the end"):
                use(entry)


def test_the_descriptor_to_read_with_is_opened_when_it_is_needed(fill, states, tmp_path, monkeypatch):
    shard = fill(states)
    path = tmp_path / shard.file
    mapped, before = SealedShard.shared(path, shard), len(os.listdir("/dev/fd"))
    entry = next(entry for _, entry in load_index(tmp_path, shard).states())
    assert mapped.read(entry) == mapped.read(entry) == mapped.value(entry)
    assert len(os.listdir("/dev/fd")) == before + 1
    del mapped
    assert len(os.listdir("/dev/fd")) <= before
    mapped = SealedShard.shared(path, shard)
    path.unlink()
    with pytest.raises(StoreDamaged, match="missing"):
        mapped.read(entry)


def test_a_shard_that_the_address_space_has_no_room_for(fill, states, tmp_path, monkeypatch):
    shard = fill(states)

    def refuse(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(module.mmap, "mmap", refuse)
    with pytest.raises(DiskError, match=f"{shard.file} cannot be mapped.*(RLIMIT_AS|no limit)"):
        SealedShard(tmp_path / shard.file, shard)
