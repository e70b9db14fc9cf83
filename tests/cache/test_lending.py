"""Memory of workers' batches: it comes back when nobody reads it any more, and never before."""

import multiprocessing
import os
import random
import signal

import numpy as np
import pytest
import torch

from cache import StoreWriter, lending
from cache.dataset import RegionLoader
from cache.lending import Slabs, receive, values_in

KEYS = [f"image {i}" for i in range(60)]
SHAPE, DTYPE = (2, 3, 4), torch.float32
SIZE = 96


@pytest.fixture
def path(tmp_path, make):
    path = tmp_path / "a.roi"
    with StoreWriter(path, "float32") as writer:
        writer.write([make(key, n=4 + i % 5) for i, key in enumerate(KEYS)])
    return path


def lent(slabs: Slabs, value: float):
    slab = slabs.lend(SIZE)
    values_in(slab, SHAPE, DTYPE).fill_(value)
    return receive(slab, SHAPE, DTYPE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_written_is_received(dtype):
    slab = Slabs(1).lend(2 * 3 * 4 * dtype.itemsize)
    wanted = torch.arange(24).view(SHAPE).to(dtype)
    values_in(slab, SHAPE, dtype).copy_(wanted)
    got = receive(slab, SHAPE, dtype)
    assert got.dtype == dtype and torch.equal(got, wanted) and got.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t, lambda t: t[1:, :2], lambda t: t.numpy(), lambda t: t.numpy()[0, 1:], lambda t: t.mT,
        lambda t: t.to(t.device), lambda t: t.flatten().unbind()[3], lambda t: memoryview(t.numpy()),
        lambda t: t.untyped_storage(), lambda t: torch.utils.dlpack.from_dlpack(t), lambda t: t.view(torch.int32),
        lambda t: torch.nn.Parameter(t[0]), lambda t: torch.nn.Parameter(t[0]).square(),
        lambda t: torch.from_numpy(t.numpy()[1]), lambda t: (lambda: t),
    ],
)  # fmt: skip
def test_any_view_holds_it(view):
    slabs = Slabs(1)
    held = view(lent(slabs, 7))
    assert slabs.lend(SIZE) is None
    del held
    assert slabs.lend(SIZE) is not None


def test_copies_do_not_hold_it():
    slabs = Slabs(1)
    for copy in (torch.clone, lambda t: t.half(), lambda t: t.tolist(), lambda t: t.numpy().copy(), lambda t: t + 1):
        held = copy(lent(slabs, 7))
        assert slabs.lend(SIZE) is not None and held is not None
        slabs = Slabs(1)


def test_as_many_as_there_may_be():
    slabs = Slabs(3)
    held = [lent(slabs, i) for i in range(3)]
    assert slabs.lend(SIZE) is None and [t.unique().tolist() for t in held] == [[0], [1], [2]]
    second = held.pop(1).data_ptr()
    again = lent(slabs, 9)
    assert again.data_ptr() == second and slabs.lend(SIZE) is None
    assert [t.unique().tolist() for t in held] == [[0], [2]]


def test_larger_ones_take_the_place_of_those_that_are_too_small():
    slabs = Slabs(2)
    small = [lent(slabs, i) for i in range(2)]
    assert slabs.lend(10_000) is None
    small.pop()
    large = slabs.lend(10_000)
    assert len(large) >= 10_000
    small.pop()
    assert len(slabs.lend(SIZE)) < 1000  # one that fits is there
    assert slabs.lend(1) is None


def test_memory_of_workers_comes_back(path):
    loader = RegionLoader(path, KEYS, 2, num_workers=1, multiprocessing_context="fork", max_regions=5, pad_to_max=True)
    places = [batch.features.data_ptr() for batch in loader]
    assert len(places) == 30 and len(set(places)) <= 4
    assert not lending._READ


@pytest.mark.parametrize("keep", [
    lambda batch: (batch.features, batch.features.clone()),
    lambda batch: (batch.features[1:, 1:], batch.features[1:, 1:].clone()),
    lambda batch: (batch.features.numpy()[:1], batch.features.numpy()[:1].copy()),
    lambda batch: (batch.to("cpu").features, batch.features.clone()),
    lambda batch: (batch.boxes, batch.boxes.clone()),
])  # fmt: skip
def test_what_is_held_stays(path, keep):
    """More batches than there are pieces of memory, over three epochs."""
    loader = RegionLoader(path, KEYS, 3, shuffle=True, num_workers=2, multiprocessing_context="fork",
                          persistent_workers=True)  # fmt: skip
    held = [keep(batch) for _ in range(3) for batch in loader]
    assert len(held) == 60 and all(np.array_equal(kept, copy) for kept, copy in held)


def test_what_is_held_for_a_while_stays(path):
    """Batches dropped in any order, passes left early."""
    loader = RegionLoader(path, KEYS, 3, shuffle=True, num_workers=2, multiprocessing_context="fork",
                          persistent_workers=True)  # fmt: skip
    rng, held = random.Random(0), []
    for epoch in range(12):
        for step, batch in enumerate(loader):
            held.append((batch.features.numpy() if rng.random() < 0.5 else batch.features, batch.features.clone()))
            rng.shuffle(held)
            del held[rng.randrange(8) :]
            assert all(np.array_equal(kept, copy) for kept, copy in held)
            if epoch % 3 == 2 and step == 7:
                break


def test_a_forked_process_keeps_what_it_inherits(path):
    loader = RegionLoader(path, KEYS, 3, num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    batches = iter(loader)
    held, go, said = next(batches), *(multiprocessing.get_context("fork").Pipe() for _ in range(2))
    copy = held.features.clone()
    child = os.fork()
    if not child:
        go[0].recv()
        said[1].send(torch.equal(held.features, copy))
        os._exit(0)
    del held
    places = [batch.features.data_ptr() for batch in batches]
    places += [batch.features.data_ptr() for _ in range(2) for batch in loader]
    go[1].send(None)
    assert said[0].recv() and os.waitpid(child, 0)[1] == 0
    assert len(places) == 59 and len(set(places)) <= 5


def _sum(queue, answer):
    for batch in iter(queue.get, None):
        answer.put((batch.keys, batch.features.double().sum().item()))


def test_batches_sent_to_another_process(path):
    context = torch.multiprocessing.get_context("fork")
    queue, answer = context.Queue(), context.Queue()
    other = context.Process(target=_sum, args=(queue, answer))
    other.start()
    wanted = []
    for batch in RegionLoader(path, KEYS, 3, num_workers=1, multiprocessing_context="fork"):
        wanted.append((batch.keys, batch.features.double().sum().item()))
        queue.put(batch)
    found = [answer.get(timeout=30) for _ in wanted]
    queue.put(None)
    other.join(30)
    assert found == wanted


def test_batches_of_a_killed_worker_stay(path):
    others = multiprocessing.active_children()
    batches = iter(RegionLoader(path, KEYS, 3, num_workers=1, multiprocessing_context="fork"))
    held = [(batch.features, batch.features.clone()) for batch, _ in zip(batches, range(4), strict=False)]
    (worker,) = [child for child in multiprocessing.active_children() if child not in others]
    with pytest.raises(RuntimeError, match="worker"):
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(30)
        list(batches)
    assert all(map(torch.equal, *zip(*held, strict=True)))
