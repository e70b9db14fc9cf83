"""The layouts that others keep region features in, as `cache_read.py` reads them.

`volta` is the LMDB of the VOLTA code base (a pickled dict an image, features and boxes in base64, and the position of
the key looked up in a list); `h5 groups` one HDF5 group an image, `h5 contig` one HDF5 data set for all; `npy` one .npy
file an image, boxes in another; `flat mmap` one array with a dict of offsets; `memcpy` the same in memory: the limit.
"""

from __future__ import annotations

import base64
import mmap
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import lmdb
import numpy as np
import torch

Records = dict[str, tuple[np.ndarray, np.ndarray]]  # key -> features f32 [n, d], boxes f32 [n, 4]; one n and d for all
Reader = Callable[[Sequence[str], torch.Tensor, torch.Tensor], None]  # keys, features and boxes to write to


def volta(folder: Path, records: Records) -> Reader:
    with lmdb.open(str(folder / "volta.lmdb"), subdir=False, map_size=64 << 30) as env, env.begin(write=True) as txn:
        for key, (features, boxes) in records.items():
            item = {"img_id": key, "img_h": 480, "img_w": 640, "num_boxes": len(boxes)}
            item |= {"features": base64.b64encode(features), "boxes": base64.b64encode(boxes)}
            txn.put(key.encode(), pickle.dumps(item))
        txn.put(b"keys", pickle.dumps([key.encode() for key in records]))
    env = lmdb.open(str(folder / "volta.lmdb"), subdir=False, readonly=True, lock=False, readahead=False)
    with env.begin() as txn:
        image_ids = pickle.loads(txn.get(b"keys"))

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        for row, key in enumerate(keys):
            name = image_ids[image_ids.index(key.encode())]
            with env.begin() as txn:
                item = pickle.loads(txn.get(name))
            values = np.frombuffer(base64.b64decode(item["features"]), np.float32).reshape(features.shape[1:])
            features[row].copy_(torch.from_numpy(values.copy()))
            corners = np.frombuffer(base64.b64decode(item["boxes"]), np.float32).reshape(-1, 4)
            boxes[row].copy_(torch.from_numpy(corners.copy()))

    return read


def h5_groups(folder: Path, records: Records) -> Reader:
    with h5py.File(folder / "groups.h5", "w") as file:
        for key, (features, boxes) in records.items():
            group = file.create_group(key)
            group["features"], group["boxes"] = features, boxes
    file = h5py.File(folder / "groups.h5", "r")

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        for row, key in enumerate(keys):
            group = file[key]
            features[row].copy_(torch.from_numpy(group["features"][()]))
            boxes[row].copy_(torch.from_numpy(group["boxes"][()]))

    return read


def h5_contig(folder: Path, records: Records) -> Reader:
    places = {key: place for place, key in enumerate(records)}
    with h5py.File(folder / "contig.h5", "w") as file:
        for which, name in enumerate(("features", "boxes")):
            file[name] = np.stack([pair[which] for pair in records.values()])
    file = h5py.File(folder / "contig.h5", "r")
    all_features, all_boxes = file["features"], file["boxes"]

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        for row, key in enumerate(keys):
            features[row].copy_(torch.from_numpy(all_features[places[key]]))
            boxes[row].copy_(torch.from_numpy(all_boxes[places[key]]))

    return read


def npy(folder: Path, records: Records) -> Reader:
    (folder / "npy").mkdir()
    for key, (features, boxes) in records.items():
        np.save(folder / "npy" / f"{key}.npy", features)
        np.save(folder / "npy" / f"{key}_info.npy", boxes)

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        for row, key in enumerate(keys):
            features[row].copy_(torch.from_numpy(np.load(folder / "npy" / f"{key}.npy")))
            boxes[row].copy_(torch.from_numpy(np.load(folder / "npy" / f"{key}_info.npy")))

    return read


def gather(all_features: np.ndarray, all_boxes: np.ndarray, keys: Sequence[str]) -> Reader:
    places = {key: place for place, key in enumerate(keys)}

    def read(keys: Sequence[str], features: torch.Tensor, boxes: torch.Tensor) -> None:
        into_features, into_boxes = features.numpy(), boxes.numpy()
        for row, key in enumerate(keys):
            into_features[row] = all_features[places[key]]
            into_boxes[row] = all_boxes[places[key]]

    return read


def flat_mmap(folder: Path, records: Records) -> Reader:
    arrays = []
    for which, first in enumerate(next(iter(records.values()))):
        with open(folder / f"flat{which}", "wb+") as file:
            for pair in records.values():
                file.write(pair[which])
            file.flush()
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        arrays.append(np.frombuffer(data, np.float32).reshape(-1, *first.shape))
    return gather(*arrays, list(records))


def memcpy(records: Records) -> Reader:
    features, boxes = (np.stack([pair[which] for pair in records.values()]) for which in (0, 1))
    return gather(features, boxes, list(records))
