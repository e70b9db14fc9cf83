import json

import numpy as np
import pytest

import roivault
from cache import Regions, StoreWriter
from consumers.tasks import Selection, load_task
from consumers.training_overlap import TrainingPictures

from ..conftest import write_examples

SEEN, OTHER = "d89a4889331ce042", "0a1b2c3d4e5f6071"


def store(path, **digests):
    box, features = np.array([[0, 0, 5, 5]], np.float32), np.ones((1, 4), np.float32)
    with StoreWriter(path, "float32") as writer:
        for key, digest in digests.items():
            writer.write([Regions(key, 9, 9, box, features, source_digest=digest and bytes([digest]) * 16)])
    return str(path)


@pytest.fixture
def annotations(tmp_path):
    write_examples(load_task("maxm", ".").examples, tmp_path / "annotations")
    return tmp_path / "annotations"


def test_pictures_are_known_by_their_names(tmp_path, annotations):
    examples = load_task("maxm", annotations).load(Selection("test"))
    names = tmp_path / "names.txt"
    names.write_text(f"train/{SEEN}.jpg\nCOCO_train2014_000000000009.jpg\n")
    assert TrainingPictures([str(names)], False).shared(examples, None) == [SEEN]
    trained = store(tmp_path / "trained.roi", **{OTHER: 1})
    assert TrainingPictures([str(names), trained], False).shared(examples, None) == [SEEN, OTHER]


def test_pictures_under_other_names_are_known_by_their_bytes(tmp_path, annotations, capsys):
    tested = store(tmp_path / "tested.roi", **{SEEN: 1, OTHER: 2})
    trained = store(tmp_path / "trained.roi", **{"17": 2, "18": 3, "19": None})
    line = ["tasks", "check", "maxm", str(annotations), "--training", trained, "--json"]
    codes = []
    for more in ([], ["--store", tested]):
        codes.append(roivault.main([*line, *more]))
        rows = {row["set"]: row for row in json.loads(capsys.readouterr().out) if row["state"] != "absent"}
        assert rows["en test"]["in_training"] == len(more) // 2
    assert codes == [65, 65], "the miniature has fewer rows than the published file"
    assert f"1 of the pictures are trained on: {OTHER}" in rows["en test"]["detail"]
