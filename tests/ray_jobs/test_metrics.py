import re
import socket
import urllib.error
import urllib.request

import pytest

from cache import Failure, UsageError
from ray_jobs.metrics import serve_metrics
from ray_jobs.options import ExtractOptions
from ray_jobs.sources import Item, Unusable
from ray_jobs.tally import Tally


def tally():
    counts = Tally(
        listed=10, complete=True, new=3, already=2, records=5, regions=77, nbytes=4096, devices=["cpu", "cpu"]
    )
    counts.queues["model"] = 4
    for name, kind in (("a", "empty"), ("b", "empty"), ('c"\n', "truncated")):
        counts.fail(Failure(name, kind, "why"), Item(name, Unusable(kind, "why"), name))
    counts.spend("model", 1.5, 8)
    counts.spend("write", 0.5, 8)
    return counts


def scrape(url):
    """{sample: value} of what is served."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "1.5", "host:", ":80", "a b:80", "::1:80", "http://h:80"])
def test_what_is_no_endpoint_is_refused_before_work_starts(text):
    with pytest.raises(UsageError, match="--metrics-port"):
        ExtractOptions(source="photos", output="s.roi", model="demo", metrics_port=text)


def test_what_is_served(capsys):
    with serve_metrics(tally(), "0", version="1.0", store='a"b\\c\nd.roi') as url:
        assert url.startswith("http://127.0.0.1:") and url in capsys.readouterr().err
        served = scrape(url)
    expected = {
        "roivault_images_listed": 10,
        "roivault_listing_complete": 1,
        "roivault_images_done": 8,
        "roivault_images_stored": 5,
        "roivault_images_already_stored": 2,
        "roivault_images_new_total": 3,
        "roivault_regions_total": 77,
        "roivault_bytes_written_total": 4096,
        'roivault_images_failed{kind="empty"}': 2,
        'roivault_images_failed{kind="truncated"}': 1,
        'roivault_queue_images{stage="model"}': 4,
        'roivault_devices{device="cpu"}': 2,
        'roivault_stage_seconds_total{stage="model"}': 1.5,
        'roivault_stage_images_total{stage="model"}': 8,
        'roivault_stage_images_total{stage="decode"}': 0,
        'roivault_job_info{store="a\\"b\\\\c\\nd.roi",version="1.0"}': 1,
    }
    assert {name: served.get(name) for name in expected} == expected
    assert served["roivault_images_per_second"] > 0 and served["process_resident_memory_bytes"] > 0
    assert all(re.match(r"(roivault|process)_", name) for name in served)


def test_counts_are_those_of_the_moment():
    counts = tally()
    with serve_metrics(counts, "0") as url:
        before = scrape(url)
        counts.new += 5
        assert scrape(url)["roivault_images_new_total"] == before["roivault_images_new_total"] + 5


def test_nothing_is_served_when_the_job_has_ended():
    with serve_metrics(tally(), "0") as url:
        pass
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


def test_nothing_is_served_unless_asked(capsys):
    with serve_metrics(tally(), None) as url:
        assert url is None
    assert capsys.readouterr() == ("", "")


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1 port {port}: Address already in use; choose another"):
            with serve_metrics(tally(), str(port)):
                pass


def test_an_address_that_is_not_here_is_named():
    with pytest.raises(UsageError, match=r"--metrics-port 192\.0\.2\.1:9100"):  # reserved for documentation
        with serve_metrics(tally(), "192.0.2.1:9100"):
            pass


def test_a_running_job_is_watched(job, photos, tmp_path, monkeypatch, capsys):
    seen = []

    class Watched(job.model):
        def extract(self, images, keys):
            url = seen[0] if seen else re.search(r"http://\S+", capsys.readouterr().err)[0]
            seen[:] = [url, scrape(url)]
            return super().extract(images, keys)

    job.model = Watched
    summary = job(photos(40), tmp_path / "s.roi", metrics_port="0")
    assert summary.exit_code == 0
    assert seen[1]["roivault_images_listed"] == 40 and seen[1]["roivault_images_done"] <= 32
    assert seen[1]['roivault_devices{device="fake"}'] == 1
    assert 0 <= seen[1]['roivault_queue_images{stage="decode"}'] + seen[1]['roivault_queue_images{stage="model"}'] <= 48
    assert any(name.startswith("roivault_job_info") and 'model="demo"' in name for name in seen[1])
