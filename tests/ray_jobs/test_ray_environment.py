import os
import sys

import pytest

from cache import UsageError
from ray_jobs.ray_environment import prepare_environment


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """No settings of Ray, as in a program that has not imported it."""
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path)})
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def test_a_cluster_of_ones_own_is_private():
    assert prepare_environment(None) is None
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    token = os.environ.pop("RAY_AUTH_TOKEN")
    del os.environ["RAY_AUTH_MODE"]
    prepare_environment("local")
    assert os.environ["RAY_AUTH_TOKEN"] != token


def test_a_cluster_that_is_there_is_met_with_the_token_there_is(tmp_path):
    assert prepare_environment("head:6379") == "head:6379"
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN" not in os.environ
    del os.environ["RAY_AUTH_MODE"]
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    prepare_environment("head:6379")
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_a_cluster_on_loopback_is_met_there():
    prepare_environment("head:6379")
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ
    prepare_environment("127.0.0.1:6379")
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_the_address_of_the_environment_is_the_default():
    os.environ["RAY_ADDRESS"] = "head:6379"
    assert prepare_environment(None) == "head:6379" and prepare_environment("auto") == "auto"
    assert prepare_environment("local") is None


def test_what_the_user_has_set_stays():
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "1"}
    prepare_environment(None)
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_nothing_is_changed_under_a_program_that_uses_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", object())
    assert prepare_environment(None) is None
    assert not [name for name in os.environ if name.startswith("RAY_")]


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265"])
def test_a_job_is_not_run_from_afar(address):
    with pytest.raises(UsageError, match=f"{address} .*`ray job submit`"):
        prepare_environment(address)
