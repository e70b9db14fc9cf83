"""`extract -o URL --work DIR`: the store comes to be at the URL, whatever is killed or lost on the way."""

import json
import shutil
import signal

import pytest

from cache import StoreMismatch, UsageError, open_store, remote_lock
from cache.remote import RemoteFolder
from ray_jobs.options import ExtractOptions

SHARD = 60_000  # bytes; a few pictures


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_CACHE", str(tmp_path / "mirrors"))
    monkeypatch.setattr(remote_lock, "_LOOK", 0.02)


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/shared/s.roi"


@pytest.fixture
def whole(job, tmp_path, contents):
    """Whether a URL holds what a job without one makes of a folder."""

    def check(folder, url):
        job(folder, tmp_path / "reference.roi")
        store = open_store(url)
        assert sum(shard.records for shard in store.manifest.shards) == len(store)
        return contents(url) == contents(tmp_path / "reference.roi")

    return check


def test_extract_to_a_url(job, photos, url, tmp_path, whole):
    folder, work = photos(60), tmp_path / "work"
    (folder / "bad.png").write_bytes(b"")
    summary = job(folder, url, work=str(work), shard_size=SHARD, max_failures="1")
    assert (summary.listed, summary.new, summary.failures, summary.exit_code) == (61, 60, {"empty": 1}, 0)
    assert summary.store == url and len(open_store(url).manifest.shards) > 2
    assert not list(work.glob("*.lmdb")) and (work / "report" / "index.html").is_file()
    again = job(folder, url, work=str(work), shard_size=SHARD, max_failures="1")
    assert (again.new, again.already, job.keys, again.failures) == (0, 60, [], {"empty": 1})
    assert whole(folder, url)


def test_a_lost_disk(job, photos, picture, url, tmp_path, whole):
    folder = photos(40)
    job(folder, url, work=str(tmp_path / "a"), shard_size=SHARD)
    shutil.rmtree(tmp_path / "a")
    picture(folder / "new.png", 99)
    summary = job(folder, url, work=str(tmp_path / "b"))
    assert (summary.new, summary.already, job.keys) == (1, 40, ["new.png"]) and whole(folder, url)
    picture(folder / "0003.png", 100)
    refreshed = job(folder, url, work=str(tmp_path / "b"), refresh_changed=True)
    assert (refreshed.refreshed, job.keys) == (1, ["0003.png"])
    with pytest.raises(StoreMismatch, match="feature_dtype"):
        job(folder, url, work=str(tmp_path / "c"), dtype="float32")


@pytest.mark.parametrize("disk", ["same", "new"])
@pytest.mark.parametrize("count", [25, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 50))])
def test_kill_9(command, photos, url, tmp_path, whole, disk, count):
    folder, work = photos(60), tmp_path / "work"
    options = ("--work", work, "--shard-size", SHARD, "--threads", 1)
    process = command.start(folder, url, *options, sleep="0.01")
    command.wait_for(count, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    registered = set()
    if RemoteFolder(url).size("manifest.json"):
        registered = set(open_store(url).keys())
    before = len(command.seen())
    if disk == "new":
        shutil.rmtree(work)
    again = command.run(folder, url, *options, "--json")
    assert again.returncode == 0, again.err
    summary = json.loads(again.out)
    assert (summary["listed"], summary["records"]) == (60, 60)
    assert not registered & set(command.seen()[before:]), "what is registered is not done again"
    assert whole(folder, url) and not RemoteFolder(url).size(remote_lock.FILE)


def test_interrupted(command, photos, url, tmp_path, whole):
    folder, work = photos(60), tmp_path / "work"
    process = command.start(folder, url, "--work", work, "--threads", 1, sleep="0.02")
    command.wait_for(20, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    done = len(open_store(url))
    assert 0 < done < 60 and not list(work.glob("*.lmdb")), "what was done is at the URL"
    shutil.rmtree(work)
    assert command.run(folder, url, "--work", work).returncode == 0
    assert len(command.seen()) == 60 and whole(folder, url)


@pytest.mark.parametrize("output, work, writers", [
    ("s3://bucket/s.roi", None, 1), ("s.roi", "work", 1), ("https://host/s.roi", "work", 1),
    ("s3://bucket/*.roi", "work", 1), ("s.roi", None, 2), ("s3://bucket/s.roi", None, 2), ("s3://a/*", "w", 2),
])  # fmt: skip
def test_wrong_options(output, work, writers):
    with pytest.raises(UsageError):
        ExtractOptions(source="photos", output=output, model="demo", engine="ray", work=work, writers=writers)


def test_no_secret_is_written_or_said(command, photos, tmp_path):
    folder = photos(2)
    for url in ("s3://me:sesame@bucket/s.roi", "https://me:sesame@127.0.0.1/s.roi?sig=sesame"):
        line = (folder, url, "--work", tmp_path / "work", "--json", "--log-file", tmp_path / "log")
        process = command.run(*line)
        assert process.returncode in (2, 74, 75) and "sesame" not in process.out + process.err
    assert not (tmp_path / "log").exists() or "sesame" not in (tmp_path / "log").read_text()
