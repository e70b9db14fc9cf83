"""The image sides of models that write texts: read from the whole checkpoint, in one file or in several."""

import hashlib
import http.server
import json
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

from cache import InputNotFound, UsageError, WeightsError
from cache.tensor_files import INDEX
from extractor import checkpoints
from extractor.extractor import load_extractor
from extractor.presets import get_preset
from extractor.transformer_configs import WRITERS
from extractor.weights_cache import fetch_weights, import_weights
from tests.extractor.grid_models import save_small


@pytest.fixture(params=WRITERS)
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tmp_path) -> Path:
    save_small(kind, tmp_path / "sharded", shard="20KB")
    return tmp_path / "sharded"


def vision_tensors(folder: Path) -> dict[str, str]:
    """The file of each tensor of the image side."""
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    return {name: file for name, file in index.items() if "vision_" in name}


def change_index(folder: Path, change) -> None:
    content = json.loads((folder / INDEX).read_text())
    change(content["weight_map"])
    (folder / INDEX).write_text(json.dumps(content))


def test_one_file_and_several_are_the_same_model(kind, folder, pictures, tmp_path):
    save_small(kind, tmp_path / "whole")
    assert len(set(vision_tensors(folder).values())) > 2 and not (tmp_path / "whole" / INDEX).exists()
    sharded, whole = (load_extractor(f"{kind}:{one}", device="cpu") for one in (folder, tmp_path / "whole"))
    assert np.array_equal(sharded(pictures[:1])[0].features, whole(pictures[:1])[0].features)
    assert sharded.weights_sha256 == whole.weights_sha256


def test_the_fingerprint_tells_what_was_read(kind, folder):
    tensors = {}
    for name, file in vision_tensors(folder).items():
        tensors[name] = load_file(folder / file)[name].numpy()
    told = hashlib.sha256()
    for name in sorted(tensors):
        told.update(f"{name} F32 {list(tensors[name].shape)}\n".encode() + tensors[name].tobytes())
    assert load_extractor(f"{kind}:{folder}", device="cpu").fingerprint()["weights_sha256"] == told.hexdigest()


def test_nothing_but_the_image_side_is_read(kind, folder, pictures, monkeypatch):
    before = load_extractor(f"{kind}:{folder}", device="cpu")
    for path in set(folder.glob("*.safetensors")) - {folder / file for file in vision_tensors(folder).values()}:
        path.unlink()
    read = []
    monkeypatch.setattr(
        checkpoints, "_tensors", lambda p, content, w, f=checkpoints._tensors: read.extend(content) or f(p, content, w)
    )
    after = load_extractor(f"{kind}:{folder}", device="cpu")
    assert set(read) == set(vision_tensors(folder))
    assert after.weights_sha256 == before.weights_sha256
    assert np.array_equal(after(pictures[:1])[0].features, before(pictures[:1])[0].features)


@pytest.mark.parametrize("named", ["../outside.safetensors", "/etc/passwd", "..", "a/b.safetensors", "x.bin", 7, None])
def test_an_index_leads_nowhere_else(kind, folder, named):
    inside = next(iter(vision_tensors(folder)))
    (folder.parent / "outside.safetensors").write_bytes((folder / vision_tensors(folder)[inside]).read_bytes())
    change_index(folder, lambda files: files.update({inside: named}))
    with pytest.raises(WeightsError, match="no safetensors file beside it"):
        load_extractor(f"{kind}:{folder}", device="cpu")


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100_000])
def test_an_index_that_makes_no_sense_is_refused(kind, folder, content):
    (folder / INDEX).write_text(content)
    with pytest.raises(WeightsError):
        load_extractor(f"{kind}:{folder}", device="cpu")


def test_loading_is_strict(kind, folder):
    files = vision_tensors(folder)
    gone = next(name for name in files if name.endswith("post_layernorm.weight"))
    whole = (folder / files[gone]).read_bytes()
    (folder / files[gone]).write_bytes(whole[:-40])
    with pytest.raises(WeightsError, match="damaged"):
        load_extractor(f"{kind}:{folder}", device="cpu")
    (folder / files[gone]).unlink()
    with pytest.raises(WeightsError, match="does not lie beside it"):
        load_extractor(f"{kind}:{folder}", device="cpu")
    (folder / files[gone]).write_bytes(whole)
    change_index(folder, lambda files: files.pop(gone))
    with pytest.raises(WeightsError, match="missing vision_model.post_layernorm.weight"):
        load_extractor(f"{kind}:{folder}", device="cpu")
    change_index(folder, lambda names: names.update({gone: files[gone], gone.replace("weight", "more"): files[gone]}))
    with pytest.raises(WeightsError, match="damaged"):
        load_extractor(f"{kind}:{folder}", device="cpu")


def test_tensors_that_are_none_of_the_model_are_refused(kind, folder, tmp_path):
    state = {name: load_file(folder / file)[name] for name, file in vision_tensors(folder).items()}
    some = next(iter(state))
    save_file(state | {some.rsplit(".", 1)[0] + ".more": state[some].clone()}, str(tmp_path / "more.safetensors"))
    with pytest.raises(WeightsError, match="unknown .*more"):
        load_extractor(f"{kind}:{folder}", weights=tmp_path / "more.safetensors", device="cpu")
    save_file({"language_model.weight": state[some].clone()}, str(tmp_path / "none.safetensors"))
    with pytest.raises(WeightsError, match="holds no tensors"):
        load_extractor(f"{kind}:{folder}", weights=tmp_path / "none.safetensors", device="cpu")


def test_published_names_of_paligemma_are_read(pictures, tmp_path):
    """Those from before transformers 5, and those of the versions between."""
    save_small("paligemma", tmp_path)
    expected = load_extractor(f"paligemma:{tmp_path}", device="cpu")(pictures[:1])[0]
    state = load_file(tmp_path / "model.safetensors")
    for old in ("vision_tower.vision_model.", "model.vision_tower.vision_model.", "model.vision_tower."):
        save_file({n.replace("vision_tower.", old): t for n, t in state.items()}, str(tmp_path / "model.safetensors"))
        found = load_extractor(f"paligemma:{tmp_path}", device="cpu")(pictures[:1])[0]
        assert np.array_equal(found.features, expected.features)


def test_other_models_are_refused(kind, folder):
    for other in {"blip2", "paligemma", "siglip"} - {kind}:
        with pytest.raises(UsageError, match="it is a model of type"):
            get_preset(f"{other}:{folder}")


@pytest.fixture
def server(folder):
    """Serves the folder; `asked` are the names of what was asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path.rsplit("/", 1)[1])

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder.parent))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/{folder.name}/{INDEX}", asked
    server.shutdown()
    server.server_close()


def test_a_repository_of_the_hub_is_fetched_in_its_files(kind, folder, server, pictures, tmp_path, monkeypatch):
    import huggingface_hub

    def download(repository, file):
        if not (folder / file).is_file():
            raise huggingface_hub.errors.EntryNotFoundError(file)
        return str(folder / file)

    url, asked = server
    monkeypatch.setenv("ROIVAULT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    preset = get_preset(f"{kind}:somebody/small")
    assert preset.urls[0] == f"https://huggingface.co/somebody/small/resolve/main/{INDEX}"
    kept = fetch_weights(preset, [url])
    assert sorted(asked) == sorted([INDEX, *set(vision_tensors(folder).values())])
    assert all(name.startswith("vision_model.") for name in load_file(kept))
    assert not [path for path in (tmp_path / "home/downloads").rglob("*.*") if path.suffix not in (".lock", "")
                and path.is_file()]  # fmt: skip
    fetched, local = load_extractor(preset.name, device="cpu"), load_extractor(f"{kind}:{folder}", device="cpu")
    assert np.array_equal(fetched(pictures[:1])[0].features, local(pictures[:1])[0].features)
    assert fetched.weights_sha256 == local.weights_sha256
    kept.unlink()
    assert import_weights(preset, folder / INDEX) == kept
    with pytest.raises(InputNotFound, match="there is no file"):
        import_weights(preset, folder / "gone.safetensors")
