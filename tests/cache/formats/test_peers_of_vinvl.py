"""OSCAR's and scene_graph_benchmark's own code on our files, and ours on theirs."""

from __future__ import annotations

import base64
import importlib
import json
import sys
import types

import numpy as np
import pytest

from cache import StoreWriter, open_store
from cache.convert import convert
from cache.formats.vinvl import GEOMETRY, geometry_of
from tests.cache.formats.conftest import WORDS

KEYS = ["1007129816", "520430", "39", "ünï"]


@pytest.fixture
def load(peer_file, monkeypatch):
    """A module of a peer's package, by the path of its file in the folder of the peers."""

    def load(tree: str, name: str):
        peer_file(f"{tree}/{name.replace('.', '/')}.py")
        monkeypatch.syspath_prepend(peer_file(f"{tree}/{name.split('.')[0]}/__init__.py").parent.parent)
        return importlib.import_module(name)

    return load


@pytest.fixture
def scene_graph(load, peer_file, monkeypatch):
    """Modules of scene_graph_benchmark without what its packages load beside them: models and their compiled parts."""
    root = peer_file("scene_graph_benchmark/maskrcnn_benchmark/__init__.py").parent
    for package in ("data", "data.datasets", "engine"):
        module = types.ModuleType(f"maskrcnn_benchmark.{package}")
        module.__path__ = [str(root.joinpath(*package.split(".")))]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, attribute in (
        ("maskrcnn_benchmark.data.datasets.evaluation", "evaluate"),
        ("maskrcnn_benchmark.engine.bbox_aug", "im_detect_bbox_aug"),
        ("scene_graph_benchmark", "scene_parser"),
        ("scene_graph_benchmark.scene_parser", "SceneParserOutputs"),
        ("imp", "reload"),
    ):
        module = types.ModuleType(name)
        setattr(module, attribute, type(attribute, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    return lambda name: load("scene_graph_benchmark", f"maskrcnn_benchmark.{name}")


@pytest.fixture
def ours(full, tmp_path):
    """Records, and the folder that is written of them."""
    records = [full(key, n) for n, key in enumerate(KEYS, 2)]
    with StoreWriter(tmp_path / "s.roi", "float32", vocabularies=WORDS) as writer:
        writer.write(records)
    convert(tmp_path / "s.roi", tmp_path / "vinvl", destination_format="vinvl-tsv")
    return records, tmp_path / "vinvl"


def test_oscar_reads_the_lines_that_are_written(load, ours):
    reader = load("Oscar", "oscar.utils.tsv_file").TSVFile
    records, folder = ours
    for name in ("features", "predictions", "vinvl.hw"):
        table = reader(str(folder / f"{name}.tsv"))
        rows = {row[0]: row[1:] for row in map(table.seek, range(len(table)))}
        assert len(table) == len(records) == len(rows)
        for record in records:
            assert len(rows[record.key]) == {"features": 2, "predictions": 1, "vinvl.hw": 1}[name]
            assert name != "features" or int(rows[record.key][0]) == len(record)


def test_oscars_dataset_decodes_the_features_that_are_written(load, ours):
    """What its pre-training asks for: `<data set>_<key>` -> [n, d + 6]."""
    module = load("Oscar", "oscar.datasets.oscar_tsv")
    records, folder = ours
    dataset = object.__new__(module.OscarTSVDataset)
    dataset.datasets_names, dataset.datasets_with_splits, dataset.datasets_with_onesplit = ["coco"], [], ["coco"]
    dataset.image_feature_path, dataset.image_file_name = {"coco": str(folder)}, "features.tsv"
    dataset.img_feature_file = dataset.img_feat_offset_map = dataset.chunk_list = None
    dataset.args = types.SimpleNamespace(img_feature_dim=8 + GEOMETRY)
    for record in records:
        found = dataset.get_img_feature(f"coco_{record.key}").numpy()
        assert found[:, :-GEOMETRY].tobytes() == record.features.tobytes()
        assert np.array_equal(found[:, -GEOMETRY:], geometry_of(record.boxes, record.width, record.height))
        assert np.allclose(found[:, -4:-2] - found[:, -6:-4], found[:, -2:], atol=1e-6)
    assert dataset.get_img_feature("coco_nothing") is None


def test_what_oscar_writes_is_read(load, full, tmp_path):
    """By its own writer, `concat_tsv_files` and `generate_lineidx_file`."""
    tsv_file, operations = (load("Oscar", f"oscar.utils.{name}") for name in ("tsv_file", "tsv_file_ops"))
    records, folder = [full(key, n) for n, key in enumerate(KEYS)], tmp_path / "theirs"
    for part in range(2):
        rows = [
            (r.key, len(r), base64.b64encode(np.concatenate([r.features, geometry_of(r.boxes, 640, 480)], 1)))
            for r in records[part::2]
        ]
        operations.tsv_writer(rows, str(folder / f"part{part}.tsv"))
        tsv_file.generate_lineidx_file(str(folder / f"part{part}.tsv"), str(folder / f"part{part}.lineidx"))
    parts = [str(folder / f"part{part}.tsv") for part in range(2)]
    operations.concat_tsv_files(parts, str(folder / "features.tsv"), generate_lineidx=True)
    operations.delete_tsv_files(parts)
    operations.tsv_writer([(r.key, "480 640") for r in records], str(folder / "test.hw.tsv"))
    report = convert(folder, tmp_path / "back.roi", feature_dtype="float32")
    assert (report.source_format, report.records, report.problems) == ("vinvl-tsv", len(records), [])
    store = open_store(tmp_path / "back.roi")
    for record in records:
        found = store[record.key]
        assert found.features.tobytes() == record.features[:, : found.features.shape[1]].tobytes()
        assert len(found) == len(record) and np.allclose(found.boxes, record.boxes, atol=1e-3)


def test_scene_graph_benchmark_reads_what_is_written(scene_graph, ours):
    tables, labels = map(scene_graph, ("structures.tsv_file", "data.datasets.utils.label_loader"))
    records, folder = ours
    numbers = json.loads((folder / "labelmap.json").read_text("utf-8"))
    loader = labels.LabelLoader(
        {"class_to_ind": numbers["label_to_idx"], "attribute_to_ind": numbers["attribute_to_idx"]},
        ["class", "conf", "attributes"],
    )
    predictions, sizes = (tables.TSVFile(str(folder / f"{name}.tsv")) for name in ("predictions", "vinvl.hw"))
    assert len(predictions) == len(sizes) == len(records)
    for i in range(len(predictions)):
        key, cell = predictions[i]
        (record,) = [record for record in records if record.key == key]
        size = json.loads(sizes[i][1])[0]
        assert sizes[i][0] == key and (size["width"], size["height"]) == (640, 480)
        target = loader(json.loads(cell)["objects"], (640, 480))
        assert np.array_equal(target.bbox.numpy(), record.boxes)
        assert np.array_equal(target.get_field("labels").numpy(), record.class_ids + 1)
        assert np.array_equal(target.get_field("attributes").numpy()[:, 0], record.attr_ids + 1)
        assert np.array_equal(target.get_field("scores").numpy(), record.class_probs)


def test_what_scene_graph_benchmark_writes_is_read(scene_graph, full, tmp_path):
    """Its own conversion of predictions in memory to predictions.tsv, with features and attributes in it."""
    import torch

    inference, bounding_box = map(scene_graph, ("engine.inference", "structures.bounding_box"))
    records, folder = [full(key, n) for n, key in enumerate(KEYS, 1)], tmp_path / "theirs"
    predictions = {}
    for i, record in enumerate(records):
        boxes = bounding_box.BoxList(torch.tensor(record.boxes), (640, 480), mode="xyxy")
        attributes = torch.tensor(record.attr_ids)[:, None] + 1
        for name, values in {
            "scores": torch.tensor(record.class_probs), "labels": torch.tensor(record.class_ids) + 1,
            "box_features": torch.tensor(record.features), "attr_labels": attributes,
            "attr_scores": torch.tensor(record.attr_probs)[:, None],
        }.items():  # fmt: skip
            boxes.add_field(name, values)
        predictions[i] = boxes
    labels = {"label_to_idx": WORDS["classes"], "attribute_to_idx": WORDS["attributes"]}
    folder.mkdir()
    (folder / "map.json").write_text(
        json.dumps({name: {word: i for i, word in enumerate(words, 1)} for name, words in labels.items()})
    )
    dataset = types.SimpleNamespace(
        get_img_key=lambda i: records[i].key, get_img_info=lambda i: {"width": 640, "height": 480},
        ind_to_class={i: word for i, word in enumerate(WORDS["classes"], 1)},
        ind_to_attribute={i: word for i, word in enumerate(WORDS["attributes"], 1)},
    )  # fmt: skip
    inference.convert_predictions_to_tsv(
        predictions, dataset, str(folder), ["rect", "class", "conf", "feature", "attr_labels", "attr_scores"], ""
    )
    assert (folder / "predictions.lineidx").is_file()
    (folder / "test.hw.tsv").write_text("".join(f'{r.key}\t[{{"height": 480, "width": 640}}]\n' for r in records))
    report = convert(folder, tmp_path / "back.roi", feature_dtype="float32")
    assert (report.records, report.problems) == (len(records), [])
    store = open_store(tmp_path / "back.roi")
    for record in records:
        found = store[record.key]
        assert np.allclose(found.boxes, record.boxes, atol=1e-4)
        for name in ("features", "class_ids", "class_probs", "attr_ids", "attr_probs"):
            assert np.array_equal(getattr(found, name), getattr(record, name)), name
