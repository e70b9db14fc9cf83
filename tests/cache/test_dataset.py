"""The dataset and the loader: batches do not depend on workers, ranks share, errors stay what they are."""

import multiprocessing
import pickle
import random
import socket
import time
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from cache import CorruptRecord, DataError, MissingKeys, StoreWriter, UsageError, open_store
from cache.batch import RegionBatch
from cache.dataset import RegionDataset, RegionLoader, collate_regions

KEYS = [f"image {i}" for i in range(57)]
OPTIONS = dict(max_regions=6, global_region="first", num_locations=7, normalize=True)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def path(module_path, make):
    """A sealed store of images with 0 to 8 regions."""
    path = module_path / "a.roi"
    if not path.exists():
        with StoreWriter(path, shard_size=100_000) as writer:
            for start in range(0, len(KEYS), 10):
                writer.write([make(key, n=i % 9) for i, key in enumerate(KEYS[start : start + 10], start)])
    return path


def copied(batch: RegionBatch) -> dict:
    return {"keys": batch.keys, **{name: tensor.clone() for name, tensor in batch.tensors().items()}}


def same(a: dict, b: dict) -> bool:
    return a["keys"] == b["keys"] and all(torch.equal(a[name], b[name]) for name in a if name != "keys")


def assert_all_same(ours: list[dict], wanted: list[dict]) -> None:
    assert len(ours) == len(wanted) and all(map(same, ours, wanted))


def test_dataset(path):
    dataset = RegionDataset(path, KEYS[::-1])
    assert len(dataset) == len(KEYS) and dataset[0].key == KEYS[-1] and dataset[-1].key == KEYS[0]
    assert [item.key for item in dataset.__getitems__([3, 1])] == [KEYS[-4], KEYS[-2]]
    with pytest.raises(IndexError):
        dataset[len(KEYS)]
    again = pickle.loads(pickle.dumps(dataset))
    assert again.keys == dataset.keys and again[5].features.tolist() == dataset[5].features.tolist()
    assert set(RegionDataset(path).keys) == set(KEYS)


def test_dataset_in_a_loader_of_torch(path):
    loader = DataLoader(RegionDataset(path, KEYS), batch_size=10, collate_fn=collate_regions)
    assert [key for batch in loader for key in batch.keys] == KEYS


def test_keys_without_a_record(path):
    with pytest.raises(MissingKeys, match="2 of the keys.*'x', 'y'"):
        RegionDataset(path, ["x", KEYS[0], "y"])
    assert RegionDataset(path, ["x", KEYS[0], "y"], missing="skip").keys == [KEYS[0]]
    with pytest.raises(DataError, match="no images"):
        RegionLoader(path, ["x"], missing="skip")
    with pytest.raises(UsageError, match="keys are text, 7 is int"):
        RegionDataset(path, [7])


def test_loader_equals_collate(path):
    store = open_store(path)
    batches = list(RegionLoader(store, KEYS, 10, **OPTIONS))
    assert len(batches) == len(RegionLoader(path, KEYS, 10)) == 6
    wanted = [collate_regions(store.get_many(KEYS[i : i + 10]), **OPTIONS) for i in range(0, len(KEYS), 10)]
    assert_all_same([copied(b) for b in batches], [copied(b) for b in wanted])


@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_loader_reuses_its_buffers(path, read):
    fresh = RegionLoader(path, KEYS, 10, shuffle=True, read=read, **OPTIONS)
    reused = RegionLoader(path, KEYS, 10, shuffle=True, read=read, reuse_buffers=True, **OPTIONS)
    batches, addresses = [], []
    for _ in range(2):
        for batch in reused:
            batches.append(copied(batch))
            addresses.append(batch.features.data_ptr())
    assert_all_same(batches, [copied(batch) for _ in range(2) for batch in fresh])
    assert len(set(addresses[:6])) <= 3  # the first epoch may still find larger batches
    assert len(set(addresses[6:])) == 1


def test_epochs_and_windows(path):
    loader = RegionLoader(path, KEYS, 10, shuffle=True, seed=5)
    epochs = [[key for batch in loader for key in batch.keys] for _ in range(3)]
    assert all(sorted(keys) == sorted(KEYS) for keys in epochs) and len({tuple(keys) for keys in epochs}) == 3
    loader.set_epoch(1)
    assert [key for batch in loader for key in batch.keys] == epochs[1]
    windowed = RegionLoader(path, KEYS, 10, shuffle=True, window=20)
    assert sorted(key for batch in windowed for key in batch.keys) == sorted(KEYS)


def test_ranks(path):
    parts = [
        [key for batch in RegionLoader(path, KEYS, 8, shuffle=True, rank=rank, world_size=2) for key in batch.keys]
        for rank in range(2)
    ]
    assert len(parts[0]) == len(parts[1]) == 29 and set(parts[0]) | set(parts[1]) == set(KEYS)


def test_ranks_of_torch_distributed(path, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        assert RegionLoader(path, KEYS, 8).batch_sampler.world_size == 1
    finally:
        torch.distributed.destroy_process_group()


def read_as_rank(rank: int, address: str, path, read: str, said) -> None:
    """What one of two ranks, each with two workers, reads in two epochs: through torch's own loader, and ours."""
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    workers = dict(num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    dataset = RegionDataset(path, KEYS, read=read)
    sampler = DistributedSampler(dataset, seed=3)
    torchs = DataLoader(dataset, 5, sampler=sampler, collate_fn=partial(collate_regions, **OPTIONS), **workers)
    ours = RegionLoader(dataset, batch_size=5, shuffle=True, seed=3, **OPTIONS, **workers)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        rows = {}
        for batch in torchs:
            rows |= {key: copied(batch)["num_regions"][i].item() for i, key in enumerate(batch.keys)}
        epochs.append((rows, [key for batch in ours for key in batch.keys]))
        torch.distributed.barrier()
    said.put((rank, epochs))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_two_ranks_with_two_workers_each(path, monkeypatch, read):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    ranks = [context.Process(target=read_as_rank, args=(rank, address, path, read, said)) for rank in range(2)]
    try:
        [rank.start() for rank in ranks]
        found = dict(said.get(timeout=60) for _ in ranks)
        [rank.join(60) for rank in ranks]
        assert [rank.exitcode for rank in ranks] == [0, 0]
    finally:
        [rank.kill() for rank in ranks]
    wanted = {key: min(i % 9 + 1, 6) for i, key in enumerate(KEYS)}
    orders = []
    for (torchs, ours), (torchs_other, ours_other) in zip(found[0], found[1], strict=True):
        assert torchs | torchs_other == wanted  # 57 images for two ranks: one is read twice
        assert len(ours) == len(ours_other) == 29 and {*ours, *ours_other} == set(KEYS)
        orders.append(tuple(ours))
    assert len(set(orders)) == 2


@pytest.mark.parametrize(
    "method, options",
    [
        ("fork", dict(num_workers=2)),
        ("fork", dict(num_workers=2, persistent_workers=True, reuse_buffers=True)),
        ("spawn", dict(num_workers=1, persistent_workers=True, read="pread")),  # each loads torch for seconds
        pytest.param("forkserver", dict(num_workers=2, persistent_workers=True), marks=pytest.mark.slow),
    ],
)
def test_workers_change_nothing(path, method, options):
    common = dict(shuffle=True, seed=1, **OPTIONS)
    wanted = [[copied(batch) for batch in epoch] for epoch in [RegionLoader(path, KEYS, 10, **common)] * 2]
    loader = RegionLoader(path, KEYS, 10, multiprocessing_context=method, **common, **options)
    for expected in wanted:
        assert_all_same([copied(batch) for batch in loader], expected)


def test_batches_of_workers_stay_unless_buffers_are_reused(path):
    loader = RegionLoader(path, KEYS, 10, num_workers=2, multiprocessing_context="fork")
    kept = list(loader)
    assert_all_same([copied(b) for b in kept], [copied(b) for b in RegionLoader(path, KEYS, 10)])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_stay_what_they_are(path, tmp_path, make, num_workers):
    path = tmp_path / "damaged.roi"
    with StoreWriter(path) as writer:
        writer.write([make(key) for key in KEYS])
    shard, offset, length = open_store(path).location(KEYS[30])
    with open(path / f"{shard}.lmdb", "rb+") as file:
        file.seek(offset + length - 1)
        file.write(b"\x01")
    method = "fork" if num_workers else None
    loader = RegionLoader(path, KEYS, 10, num_workers=num_workers, multiprocessing_context=method)
    read = []
    with pytest.raises(CorruptRecord, match="image 30.*checksum"):
        for batch in loader:
            read += batch.keys
    assert read == KEYS[:30]


def test_readers_beside_a_writer(tmp_path, make):
    path = tmp_path / "growing.roi"
    with StoreWriter(path) as writer:
        writer.write([make(key) for key in KEYS[:30]])
        loader = RegionLoader(path, KEYS[:30], 10, num_workers=2, multiprocessing_context="fork",
                              persistent_workers=True)  # fmt: skip
        wanted = [copied(batch) for batch in RegionLoader(path, KEYS[:30], 10)]
        assert_all_same([copied(batch) for batch in loader], wanted)
        writer.seal()
        writer.write([make(key) for key in KEYS[30:]])
        assert_all_same([copied(batch) for batch in loader], wanted)


def test_several_stores_and_loaders_at_once(path, tmp_path, make):
    other = tmp_path / "b.roi"
    with StoreWriter(other, "float32") as writer:
        writer.write([make(f"other {i}", n=4) for i in range(20)])
    both = [str(path), str(other)]
    keys = [*KEYS, *(f"other {i}" for i in range(20))]
    train = RegionLoader(both, keys, 8, shuffle=True, num_workers=1, multiprocessing_context="fork")
    evaluation = RegionLoader(path, KEYS, 8, num_workers=1, multiprocessing_context="fork", reuse_buffers=True)
    wanted = [copied(batch) for batch in RegionLoader(path, KEYS, 8)]
    seen = []
    for batch, other_batch, expected in zip(train, evaluation, wanted, strict=False):
        seen += batch.keys
        assert same(copied(other_batch), expected)
    assert len(seen) == len(set(seen)) == 64


def test_wrong_options(path):
    for options, said in [
        (dict(normalise=True), "no option normalise"),
        (dict(rank=1), "both rank and world_size"),
        (dict(read="fast"), "auto, mmap, pread"),
        (dict(missing="ignore"), "missing"),
        (dict(batch_size=0), "batch_size=0"),
        (dict(batch_size="8"), "batch_size='8'"),
        (dict(keys="text"), "keys='text' is not a list"),
        (dict(num_locations=3), "num_locations=3"),
        (dict(num_locations="5"), "num_locations='5'"),
        (dict(max_regions=2.5), "max_regions=2.5"),
        (dict(seed=None), "seed=None"),
        (dict(num_workers=-1), "num_workers=-1"),
        (dict(persistent_workers=True), "num_workers > 0"),
        (dict(num_workers=1, multiprocessing_context="thread"), "'fork', 'spawn'"),
    ]:
        with pytest.raises(UsageError, match=said):
            RegionLoader(path, **{"keys": KEYS, "batch_size": 8, **options})
    with pytest.raises(UsageError, match="epoch='x'"):
        RegionLoader(path, KEYS).set_epoch("x")
    with pytest.raises(UsageError, match="its own keys"):
        RegionLoader(RegionDataset(path, KEYS), KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("hold", [0, 9])
def test_workers_under_stress(path, tmp_path, make, method, hold):
    """Many small batches, several loaders and stores at once, consumers that dawdle, hold batches, or leave early."""
    with StoreWriter(tmp_path / "b.roi", "float32") as writer:
        writer.write([make(f"other {i}", n=i % 4) for i in range(len(KEYS))])
    common = dict(shuffle=True, **OPTIONS)
    sets = [(path, KEYS), ([path, tmp_path / "b.roi"], [*KEYS[::2], *(f"other {i}" for i in range(28))])]
    loaders = [
        RegionLoader(*sets[seed], 3, seed=seed, num_workers=3, multiprocessing_context=method, persistent_workers=True,
                     prefetch_factor=1 + seed, read=read, **common)
        for seed, read in enumerate(["mmap", "pread"])
    ]  # fmt: skip
    alone = [RegionLoader(*sets[seed], 3, seed=seed, **common) for seed in range(2)]
    rng, held = random.Random(0), []
    for epoch in range(12):
        for loader in (*loaders, *alone):
            loader.set_epoch(epoch)
        leave = epoch % 3 == 2
        for step, batches in enumerate(zip(*loaders, *alone, strict=True)):
            if rng.random() < 0.2:
                time.sleep(rng.random() / 50)
            for ours, wanted in zip(batches[:2], batches[2:], strict=True):
                held.append((ours, copied(wanted)))
            rng.shuffle(held)
            assert all(same(copied(ours), wanted) for ours, wanted in held)
            del held[hold and rng.randrange(hold) :]
            if leave and step == 5:
                break
