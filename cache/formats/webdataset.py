"""A tar for the webdataset library: for each record `NAME.json` with its key and image size, and `NAME.<field>.npy`.

webdataset takes what stands before the first dot of the last part of a member's name for the sample, so NAME is the key
with its dots (and percent signs, and what no file can be called) percent-escaped; the key itself is in the JSON.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..regions import BFLOAT16, Regions
from .base import ALL_FIELDS, VG_IDS, Format, Notes, Vocabularies

_ESCAPED = re.compile(r"[%.\x00-\x1f\x7f]")


@contextmanager
def write(path: Path, vocabularies: Vocabularies, notes: Notes):
    """Arrays keep their dtype, bfloat16 becomes float32. Equal stores give equal bytes."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
            tar.members.clear()  # it would remember every one

        def put(regions: Regions) -> None:
            name = sample_name(regions.key)
            digest = regions.source_digest
            about = {
                "key": regions.key,
                "width": regions.width,
                "height": regions.height,
                "source_digest": digest and digest.hex(),
            }
            add(f"{name}.json", json.dumps(about, ensure_ascii=False).encode())
            for field, array in regions.arrays().items():
                buffer = io.BytesIO()
                np.save(buffer, array.astype(np.float32) if array.dtype == BFLOAT16 else array, allow_pickle=False)
                add(f"{name}.{field}.npy", buffer.getvalue())

        yield put


def sample_name(key: str) -> str:
    """Another name for each key, which leads to no other folder: of an absolute path the first slash is escaped too."""
    name = _ESCAPED.sub(lambda char: f"%{ord(char[0]):02X}", key)
    return f"%2F{name[1:]}" if name.startswith("/") else name


FORMAT = Format(
    "webdataset",
    "tar of .npy and .json members (webdataset)",
    VG_IDS,
    ALL_FIELDS,
    lambda path: False,  # a tar holds anything, and none is read
    write=write,
    suffixes=(".tar",),
    features_as="as stored, bfloat16 as float32",
)
