"""Miniatures of datasets, archives and tables, built from nothing but the paths of the pictures in them."""

import base64
import csv
import gzip
import io
import re
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

CONTAINER = re.compile(r"(.*?\.(?:zip|tar|tgz|tar\.gz|tar\.bz2|tar\.xz|tsv|csv|tsv\.gz|csv\.gz|parquet))/(.*)")


def picture_bytes(index, format="PNG"):
    """A small picture that differs from those of every other index."""
    pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def write_table(path, rows):
    """rows: (key, image bytes)."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        keys, images = zip(*rows, strict=True)
        table = pyarrow.table({"key": list(keys), "image": list(images)})
        pyarrow.parquet.write_table(table, path, row_group_size=2)
        return
    packed = path.suffix == ".gz"
    separator = "\t" if ".tsv" in path.name else ","
    with gzip.open(path, "wt") if packed else open(path, "w") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["key", "image"])
        writer.writerows((key, base64.b64encode(data).decode()) for key, data in rows)


def write_container(path, members):
    """An archive or a table, by its name; members: (name, bytes)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(name, data)
    elif ".t" in path.name and "tsv" not in path.name:
        packing = {".tar": "", ".tgz": "gz"}.get(path.suffix, path.suffix[1:])
        with tarfile.open(path, f"w:{packing}") as archive:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    else:
        write_table(path, members)
    return path


def build(examples, folder, backwards=False):
    """Lay out the examples of a source below a folder; returns the bytes of the picture of each key.

    `backwards` makes the last file first; the order within archives and tables stays.
    """
    files, containers, expected = {}, {}, {}
    for index, (path, key) in enumerate(examples.items()):
        data = expected[key] = picture_bytes(index)
        if match := CONTAINER.fullmatch(path):
            containers.setdefault(match[1], []).append((match[2], data))
        else:
            files[path] = data
    for path, content in sorted({**files, **containers}.items(), reverse=backwards):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if path in containers:
            write_container(folder / path, content)
        else:
            (folder / path).write_bytes(content)
    return expected


@pytest.fixture(name="build")
def build_fixture():
    return build


@pytest.fixture(name="picture_bytes")
def picture_bytes_fixture():
    return picture_bytes


@pytest.fixture(name="write_container")
def write_container_fixture():
    return write_container
