from __future__ import annotations

import json

import numpy as np
import pytest

from cache import DataError, StoreWriter
from cache.convert import convert
from cache.formats import coco_results


def test_entries(tmp_path, put_store, full):
    records = [full("COCO_val2014_000000520430", 2, same_scores=False), full("none", 0), full("sw/39-11", 3)]
    report = convert(put_store(records), tmp_path / "r.json")
    assert (report.records, report.destination_format) == (3, "coco-results")
    assert report.without_place.keys() == {
        "features", "class_probs", "attr_ids", "attr_probs", "class_scores", "global_features", "source_digest"
    }  # fmt: skip
    entries = json.loads((tmp_path / "r.json").read_text())
    assert len(entries) == 5
    for record, image in ((records[0], 520430), (records[2], "sw/39-11")):
        mine = [entry for entry in entries if entry["image_id"] == image]
        assert len(mine) == len(record) and all(list(e) == ["image_id", "category_id", "bbox", "score"] for e in mine)
        assert [e["category_id"] for e in mine] == (record.class_ids + 1).tolist()
        assert np.array([e["score"] for e in mine], np.float32).tobytes() == record.scores.tobytes()
        x, y, width, height = np.array([e["bbox"] for e in mine]).T
        assert np.stack([x, y, x + width, y + height], 1).astype(np.float32).tobytes() == record.boxes.tobytes()


def test_coco_has_numbers_of_its_own(tmp_path, full):
    words = ["person", *(f"c{i}" for i in range(78)), "toothbrush"]
    record = full("000000050403", 3).replace(class_ids=np.array([0, 11, 79], np.int32))
    with StoreWriter(tmp_path / "s.roi", vocabularies={"classes": words}) as writer:
        writer.write([record])
    report = convert(tmp_path / "s.roi", tmp_path / "r.json")
    entries = json.loads((tmp_path / "r.json").read_text())
    assert [e["category_id"] for e in entries] == [1, 13, 90] and {e["image_id"] for e in entries} == {50403}
    assert "COCO's own number" in report.remarks[0]
    assert len(coco_results._COCO_IDS) == 80


def test_class_probs_stand_in_for_scores_and_one_of_them_is_needed(tmp_path, put_store, full):
    record = full("a", 2).replace(scores=None)
    convert(put_store([record]), tmp_path / "r.json")
    entries = json.loads((tmp_path / "r.json").read_text())
    assert np.array([e["score"] for e in entries], np.float32).tobytes() == record.class_probs.tobytes()
    bare = full("a", 2).replace(scores=None, class_probs=None)
    with pytest.raises(DataError, match="needs class_ids, and scores"):
        convert(put_store([bare], name="bare.roi"), tmp_path / "bare.json")


def test_pycocotools_reads_it(tmp_path, put_store, full):
    coco = pytest.importorskip("pycocotools.coco")
    convert(put_store([full("COCO_val2014_000000520430", 3)]), tmp_path / "r.json")
    truth = {"images": [{"id": 520430}], "annotations": [], "categories": [{"id": i} for i in range(1, 6)], "info": {}}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    assert len(coco.COCO(str(tmp_path / "truth.json")).loadRes(str(tmp_path / "r.json")).anns) == 3
