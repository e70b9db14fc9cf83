import numpy as np

from cache.labels import Labels, names_of


def test_ids_and_names_are_counted():
    labels = Labels()
    labels.add(np.array([0, 1, 2, 9]), np.array([1, 2, 3, 0]), ["a", "b", "c"], ["z", "a", "b", "d"])
    assert (labels.regions, labels.same_id, labels.same_name, labels.named) == (4, 0, 2, 3)
    assert labels.shifts == {1: 3, None: 1}
    assert labels.to_dict()["id_of_b_minus_id_of_a"] == {"+1": 3, "more": 1}


def test_ids_without_names():
    assert names_of(np.array([-1, 0, 5]), ["a"]) == [None, "a", None]
    labels = Labels()
    labels.add(np.empty(0, int), np.empty(0, int), [], [])
    assert labels.regions == 0
