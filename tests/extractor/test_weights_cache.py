import http.server
import json
import threading
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from cache import DiskError, InputNotFound, UsageError, WeightsError
from cache.files import cache_folder
from extractor.weights import file_sha256, load_weights, weights_path, weights_sha256
from extractor.weights_cache import check_recorded, fetch_weights, import_weights, recorded


class Server:
    """Serves `content` and notes each request's range; `broken` answers end after that many bytes."""

    def __init__(self, content: bytes):
        self.content, self.tag, self.broken, self.ranges, self.status = content, '"one"', [], [], 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked = self.headers.get("Range")
                outer.ranges.append(asked)
                if outer.status != 200:
                    return self.send_error(outer.status)
                start = 0
                if asked and self.headers.get("If-Range") == outer.tag:
                    start = int(asked.removeprefix("bytes=").rstrip("-"))
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{len(outer.content) - 1}/{len(outer.content)}")
                else:
                    self.send_response(200)
                body = outer.content[start:]
                self.send_header("ETag", outer.tag)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: outer.broken.pop(0)] if outer.broken else body)
                return None

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/models/file.pth?x=1"


@pytest.fixture
def server(small_weights, tmp_path):
    torch.save({"model": load_file(small_weights)}, tmp_path / "published.pth")
    server = Server((tmp_path / "published.pth").read_bytes())
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture
def preset(small_preset, server, tmp_path, monkeypatch):
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return replace(small_preset, weights="small.safetensors", urls=(server.url,))


def test_a_fetched_checkpoint_is_the_published_one(preset, server, small_weights, tmp_path):
    seen = []
    path = fetch_weights(preset, report=lambda *numbers: seen.append(numbers))
    assert path == weights_path(preset) and cache_folder() in path.parents
    assert seen[-1] == (len(server.content), len(server.content))
    stored = load_file(path)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in load_file(small_weights).items())
    assert weights_sha256(path) == file_sha256(tmp_path / "published.pth") == recorded()[server.url]
    assert fetch_weights(preset) == path and len(server.ranges) == 1  # not downloaded again
    assert [p.name for p in (cache_folder() / "downloads").iterdir() if p.suffix != ".lock"] == []


def test_an_interrupted_download_goes_on_where_it_broke_off(preset, server):
    server.broken = [1000, 2000]
    path = fetch_weights(preset)
    assert server.ranges == [None, "bytes=1000-", "bytes=3000-"]
    assert recorded()[server.url] == weights_sha256(path)


def test_a_later_run_resumes_and_a_changed_file_starts_again(preset, server):
    server.broken = [1000, 1000, 1000]
    with pytest.raises(InputNotFound, match="3000 of"):
        fetch_weights(preset)
    server.tag, server.ranges = '"two"', []
    fetch_weights(preset)
    assert server.ranges == ["bytes=3000-"]


def test_mirrors_are_tried_in_order(preset, server):
    dead = "http://127.0.0.1:9/dead.pkl"
    path = fetch_weights(replace(preset, urls=(dead, "ftp://127.0.0.1/x", server.url)), urls=["http://127.0.0.1:9/first"])
    assert path.is_file() and server.url in recorded()


def test_when_nothing_answers_the_addresses_and_the_way_out_are_named(preset, server):
    server.status = 404
    dead = "http://127.0.0.1:9/dead.pkl"
    with pytest.raises(InputNotFound) as caught:
        fetch_weights(replace(preset, urls=(dead, server.url)))
    text = str(caught.value)
    assert dead in text and server.url in text and "404" in text
    assert f"roivault weights import {preset.name} FILE" in text


def test_a_model_without_addresses_keeps_nothing(preset, server, tmp_path):
    shipped = replace(preset, urls=(), weights="elsewhere.safetensors")
    for action in (
        lambda: fetch_weights(shipped),
        lambda: fetch_weights(shipped, [server.url]),
        lambda: import_weights(shipped, tmp_path / "published.pth"),
    ):
        with pytest.raises(UsageError, match="no published weights.*--weights FILE"):
            action()
    assert not server.ranges and not (cache_folder() / "weights").exists()


def test_a_wrong_file_behind_the_address_is_refused_and_not_kept(preset, server):
    server.content = b"<html>moved</html>"
    with pytest.raises(WeightsError, match="web page"):
        fetch_weights(preset)
    assert not preset.weights_file.exists()


def test_a_wrong_file_does_not_bar_the_right_one_later(preset, server):
    right, server.content = server.content, b"<html>log in to this network first</html>"
    with pytest.raises(WeightsError, match="web page"):
        fetch_weights(preset)
    server.content, server.tag = right, '"two"'
    assert fetch_weights(preset) == preset.weights_file


def test_another_file_at_a_known_address_is_refused(preset, server, tmp_path):
    fetch_weights(preset).unlink()
    torch.save({"model": {"a": torch.zeros(3)}}, tmp_path / "other.pth")
    server.content, server.tag = (tmp_path / "other.pth").read_bytes(), '"two"'
    with pytest.raises(WeightsError, match="recorded at its first use"):
        fetch_weights(preset)


def test_an_installed_file_that_changed_is_refused(preset, server):
    path = fetch_weights(preset)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match="recorded at its first use"):
        check_recorded(path)


def test_importing_twice_gives_the_same_bytes(preset, server, small_weights, tmp_path, small_preset):
    first = import_weights(preset, tmp_path / "published.pth").read_bytes()
    again = import_weights(preset, preset.weights_file)
    assert again.read_bytes().split(b"source")[0] == first.split(b"source")[0]
    assert weights_sha256(again) == file_sha256(tmp_path / "published.pth")
    from extractor.detector import Detector

    load_weights(Detector(small_preset.architecture), again)
    with pytest.raises(InputNotFound, match="gone"):
        import_weights(preset, tmp_path / "gone")


def test_a_damaged_record_and_an_unwritable_cache_are_named(preset, server, tmp_path, monkeypatch):
    fetch_weights(preset)
    (cache_folder() / "checksums.json").write_text("{")
    with pytest.raises(WeightsError, match="checksums.json"):
        recorded()
    (cache_folder() / "checksums.json").write_text(json.dumps([]))
    with pytest.raises(WeightsError, match="checksums.json"):
        recorded()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path / "file"))
    with pytest.raises(DiskError, match="ROIVAULT_HOME"):
        fetch_weights(preset)
