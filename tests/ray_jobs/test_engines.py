import pytest

from cache import UsageError
from ray_jobs import engines
from ray_jobs.engines import gpu_count, make_engine
from ray_jobs.options import ExtractOptions
from ray_jobs.signals import Drain


@pytest.fixture
def chosen(monkeypatch):
    """The name of the engine for options, with so many GPUs and with or without Ray."""

    def choose(gpus=0, has_ray=True, **options):
        monkeypatch.setattr(engines, "gpu_count", lambda: gpus)
        monkeypatch.setattr(engines, "_has_ray", lambda: has_ray)
        options = ExtractOptions("photos", "s.roi", "demo", **options)
        return make_engine(options, type("Choices", (), {"threads": 1}), None, Drain()).name

    return choose


def test_ray_is_for_clusters_and_several_gpus(chosen):
    pytest.importorskip("ray")
    assert chosen() == chosen(gpus=1) == chosen(gpus=8, device="cpu") == chosen(gpus=8, device="cuda:1") == "local"
    assert chosen(gpus=8, engine="local") == "local"
    assert chosen(gpus=2) == chosen(gpus=8, device="cuda") == chosen(address="auto") == chosen(engine="ray") == "ray"


def test_without_ray_the_user_is_told(chosen, capsys):
    assert chosen(gpus=4, has_ray=False) == "local"
    assert "4 GPUs" in (err := capsys.readouterr().err) and "pip install 'ray[default" in err
    for options in ({"engine": "ray"}, {"address": "auto"}):
        with pytest.raises(UsageError, match=r"pip install 'ray\[default"):
            chosen(has_ray=False, **options)


def test_one_gpu_is_for_the_local_engine(chosen):
    with pytest.raises(UsageError, match="cuda:1 names one GPU"):
        chosen(engine="ray", device="cuda:1")


@pytest.mark.parametrize("engine", [None, "local"])
def test_several_writers_are_for_ray(engine):
    with pytest.raises(UsageError, match="--engine ray"):
        ExtractOptions("photos", "s.roi", "demo", engine=engine, writers=2, work="work")


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,3", 2), ("GPU-8932f937", 1)])
def test_the_gpus_that_this_process_may_use(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count() == count
