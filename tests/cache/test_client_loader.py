import pytest
import torch

from cache import open_store
from cache.dataset import RegionDataset, RegionLoader
from tests.cache.asker import in_a_process
from tests.cache.conftest import make_regions

KEYS = [f"{unit}/{i}" for unit in "ab" for i in range(7)]
OPTIONS = [
    {}, {"shuffle": True, "seed": 3}, {"shuffle": True, "window": 8}, {"reuse_buffers": True, "drop_last": True},
    {"global_region": "first", "num_locations": 7, "normalize": True, "max_regions": 3},
    {"max_regions": 9, "pad_to_max": True, "dtype": torch.float16}, {"rank": 1, "world_size": 2, "shuffle": True},
]  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The path of a store, and its URL."""
    from cache import StoreWriter

    folder = tmp_path_factory.mktemp("served")
    patch = pytest.MonkeyPatch()
    patch.setenv("ROIVAULT_CACHE", str(folder / "mirrors"))
    with StoreWriter(folder / "s.roi", "float16") as writer:
        for unit in "ab":
            writer.write([make_regions(key, n=2 + i % 5, d=16) for i, key in enumerate(KEYS) if key[0] == unit])
            writer.seal()
    with in_a_process(folder / "s.roi") as (_, told):
        yield folder / "s.roi", told["url"]
    patch.undo()


def batches(target, **options):
    """Two epochs, bit by bit."""
    loader = RegionLoader(target, KEYS[::-1], 4, **options)
    return [
        (batch.keys, {name: tensor.numpy().tobytes() for name, tensor in batch.tensors().items()})
        for _ in range(2)
        for batch in loader
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_are_those_of_the_local_store(places, options):
    path, url = places
    local = batches(path, **options)
    assert local and batches(url, **options) == local


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow),
                                    pytest.param("forkserver", marks=pytest.mark.slow)])  # fmt: skip
def test_in_workers(places, method):
    path, url = places
    options = {"shuffle": True, "num_workers": 2, "multiprocessing_context": method, "timeout": 120}
    local = batches(path, shuffle=True)
    assert batches(url, **options) == local
    if method == "fork":
        store = open_store(url)
        first = store["a/1"].features.tobytes()
        assert batches(store, persistent_workers=True, **options) == local, "opened and read from before"
        assert store["a/1"].features.tobytes() == first


def test_a_list_of_images(places):
    _, url = places
    dataset = RegionDataset(url, KEYS[:3])
    assert [regions.key for regions in dataset.__getitems__([2, 0])] == [KEYS[2], KEYS[0]]
    assert list(dataset.disk_order()) == [0, 1, 2] and len(RegionDataset(url)) == len(KEYS)


def test_the_next_batch_is_asked_for_ahead(places, monkeypatch):
    path, url = places
    loader = RegionLoader(url, KEYS, 4)
    asked = []
    monkeypatch.setattr(loader.regions.store, "prefetch", asked.append)
    batches = iter(loader)
    assert next(batches).keys == KEYS[:4] and asked == [KEYS[:4], KEYS[4:8]]
    assert len(list(batches)) == 3 and sum(asked, []) == KEYS
    local = RegionLoader(path, KEYS, 4)
    monkeypatch.setattr(local.regions.store, "prefetch", lambda keys: 1 / 0)
    assert len(list(local)) == 4
