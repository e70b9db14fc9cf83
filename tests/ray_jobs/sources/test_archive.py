"""Archives as people have them, and as somebody who means harm would write them."""

import bz2
import gzip
import io
import lzma
import os
import random
import struct
import tarfile
import zipfile

import pytest

from cache import DataError, InputNotFound
from extractor.images import DecodePolicy, ImageError
from ray_jobs.sources import handles, open_source, streams, tar_members


def listed(path, rule=None):
    return list(open_source(f"archive:{path}", rule).items())


def outcome(item):
    """The bytes of an item, or the kind of its failure."""
    try:
        return item.locator.read(item.key, DecodePolicy())
    except ImageError as error:
        assert error.key == item.key
        return error.kind


def outcomes(path):
    return {item.key: outcome(item) for item in listed(path)}


def make_tar(path, *members, mode="w", **options):
    """members: (name or TarInfo, bytes)."""
    with tarfile.open(path, mode, **options) as archive:
        for name, data in members:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def special(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz"])
def test_members_that_are_images_by_suffix_or_content(tmp_path, write_container, picture_bytes, suffix):
    image = picture_bytes(1)
    members = [("b/2.PNG", image), ("b/raw", image), ("a.txt", b"text"), ("inner.zip", b"PK\3\4")]
    members += [("a/bad.jpg", b"text"), ("__MACOSX/b/._2.PNG", b"\0\5\x16\7"), ("./a/1.v2.png", image), ("no.png", b"")]
    path = write_container(tmp_path / f"some.{suffix}", members)
    expected = {"b/2.PNG": image, "b/raw": image, "a/bad.jpg": "not_an_image", "a/1.v2.png": image, "no.png": "empty"}
    assert outcomes(path) == expected
    assert [item.key for item in listed(path)] == list(expected)
    assert [item.key for item in listed(path, "stem")] == ["2", "raw", "bad", "1.v2", "no"]
    assert listed(path)[0].source == f"{path}!b/2.PNG"


def test_content_decides_what_an_archive_is(tmp_path, write_container, picture_bytes):
    write_container(tmp_path / "a.tar.gz", [("1.png", picture_bytes(1))]).rename(tmp_path / "download")
    assert outcomes(tmp_path / "download") == {"1.png": picture_bytes(1)}
    write_container(tmp_path / "a.zip", [("1.png", picture_bytes(1))]).rename(tmp_path / "a.tar")
    assert outcomes(tmp_path / "a.tar") == {"1.png": picture_bytes(1)}
    (tmp_path / "notes.dat").write_bytes(b"no archive")
    with pytest.raises(DataError, match="notes.dat is no archive"):
        open_source(f"archive:{tmp_path}/notes.dat")


def test_a_path_that_ends_like_an_archive_needs_no_name(tmp_path, write_container, picture_bytes):
    path = write_container(tmp_path / "a.tgz", [("1.png", picture_bytes(1))])
    (tmp_path / "folder.zip").mkdir()
    assert [item.key for item in open_source(str(path)).items()] == ["1.png"]
    assert [item.key for item in open_source(f"{tmp_path}/?.tgz").items()] == ["a.tgz/1.png"]
    assert (open_source(f"{tmp_path}/folder.zip").name, open_source(f"folder:{path}").name) == ("folder", "folder")
    with pytest.raises(InputNotFound, match="gone"):
        open_source(f"{tmp_path}/gone.zip")


def test_several_archives_never_collide(tmp_path, write_container, picture_bytes):
    for name in ("x/0.tar", "x/1.zip"):
        write_container(tmp_path / name, [("1.png", picture_bytes(1))])
    (tmp_path / "list.txt").write_text("x/1.zip\n")
    both = ["x/0.tar/1.png", "x/1.zip/1.png"]
    assert [i.key for i in listed(tmp_path)] == both
    assert [i.key for i in listed(f"{tmp_path}/x/{{0..1}}.*")] == ["0.tar/1.png", "1.zip/1.png"]
    assert [i.key for i in listed(tmp_path / "list.txt")] == ["x/1.zip/1.png"]
    with pytest.raises(InputNotFound, match="nothing matches"):
        open_source(f"archive:{tmp_path}/*.rar")


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_odd_tar_members_are_stated_failures(tmp_path, picture_bytes, suffix):
    image, mode = picture_bytes(1), "w:gz" if suffix.endswith("gz") else "w"
    long = "d" * 120 + "/" + "n" * 120 + ".png"
    members = [
        (special("link.png", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (special("hard.png", tarfile.LNKTYPE, "good.png"), b""),
        (special("device.png", tarfile.CHRTYPE), b""),
        (special("pipe.png", tarfile.FIFOTYPE), b""),
        (special("folder.png", tarfile.DIRTYPE), b""),
        ("../../escape.png", image),
        ("/absolute.png", image),
        ("a/../b.png", image),
        (long, image),
        ("caf\udce9.png", image),
        ("k" * 600 + ".png", image),
        ("good.png", image),
    ]
    path = make_tar(tmp_path / f"odd.{suffix}", *members, mode=mode, errors="surrogateescape")
    found = outcomes(path)
    shortened = next(key for key in found if key.startswith("kkk"))
    assert found.pop(shortened) == "key_invalid" and len(shortened.encode()) <= 511
    assert found == {
        "link.png": "unreadable",
        "hard.png": "unreadable",
        "device.png": "unreadable",
        "pipe.png": "unreadable",
        "../../escape.png": "key_invalid",
        "/absolute.png": "key_invalid",
        "a/../b.png": "key_invalid",
        long: image,
        "caf%E9.png": image,
        "good.png": image,
    }
    assert os.listdir(tmp_path) == [f"odd.{suffix}"]


def test_sparse_members_are_stated_failures(tmp_path):
    old = special("old.png", tarfile.GNUTYPE_SPARSE)
    pax = tarfile.TarInfo("new.png")
    sparse = {"major": "0", "minor": "1", "size": "9", "map": "0,9"}
    pax.pax_headers = {f"GNU.sparse.{name}": value for name, value in sparse.items()}
    assert outcomes(make_tar(tmp_path / "a.tar", (old, b""), format=tarfile.GNU_FORMAT)) == {"old.png": "unsupported"}
    path = make_tar(tmp_path / "b.tar", (pax, b"123456789"), format=tarfile.PAX_FORMAT)
    assert outcomes(path) == {"new.png": "unsupported"}


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz"])
def test_equal_names_are_duplicate_keys(tmp_path, job, write_container, picture_bytes, suffix):
    members = [("a.png", picture_bytes(1)), ("b.png", picture_bytes(2)), ("a.png", picture_bytes(3))]
    with pytest.warns(UserWarning) if suffix == "zip" else open(os.devnull):
        path = write_container(tmp_path / f"twice.{suffix}", members)
    summary = job(f"archive:{path}", tmp_path / "s.roi")
    assert (summary.listed, summary.records, summary.failures) == (3, 2, {"duplicate_key": 1})
    assert "a.png has the key 'a.png' already; leave one of them out" in summary.examples[0]["message"]
    assert outcome(listed(path)[0]) == picture_bytes(1)


def cut(path, keep):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_cut_archive_gives_what_it_has_and_says_so(tmp_path, job, write_container, picture_bytes, suffix):
    members = [(f"{n}.png", picture_bytes(n) + bytes(n) + random.Random(n).randbytes(30000)) for n in range(40)]
    path = cut(write_container(tmp_path / f"cut.{suffix}", members), 0.9)
    summary = job(f"archive:{path}", tmp_path / "s.roi", max_failures="50%")
    assert 10 <= summary.records < 40 and summary.failures.keys() == {"truncated"} and summary.exit_code == 65
    assert "could not be listed to their end" in summary.verdict
    whole = [item for item in listed(path) if item.hides]
    assert [item.key for item in whole] == [path.name] and "ends" in whole[0].locator.message
    again = job(f"archive:{path}", tmp_path / "s.roi", max_failures="50%")
    assert (again.new, again.exit_code) == (0, 65)


def test_a_tar_that_was_cut_between_members_or_lacks_its_end_mark(tmp_path, picture_bytes):
    path = make_tar(tmp_path / "a.tar", ("1.png", picture_bytes(1)))
    data = path.read_bytes()
    path.write_bytes(data[: 512 + -(-len(picture_bytes(1)) // 512) * 512])
    assert outcomes(path) == {"1.png": picture_bytes(1), "a.tar": "truncated"}
    path.write_bytes(data[:1024] + b"x" * 512 + data[1536:])
    assert outcomes(path)["a.tar"] == "decode_error"


def test_a_zip_without_its_directory(tmp_path, write_container, picture_bytes):
    path = cut(write_container(tmp_path / "cut.zip", [("1.png", picture_bytes(1)), ("2.png", picture_bytes(2))]), 0.6)
    (only,) = listed(path)
    assert (only.key, only.hides, outcome(only)) == ("cut.zip", True, "truncated")


def test_odd_zip_members_are_stated_failures(tmp_path, picture_bytes):
    image, path = picture_bytes(1), tmp_path / "odd.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("locked.png", "method.png", "crc.png", "good.png", "sub\\windows.png", "../escape.png"):
            archive.writestr(name, image)
        archive.writestr("bzip2.png", image, zipfile.ZIP_BZIP2)
        link = zipfile.ZipInfo("link.png")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "good.png")
        windows = zipfile.ZipInfo("x")
        windows.filename, windows.create_system = "folder\\old.png", 0
        archive.writestr(windows, image)
    data = bytearray(path.read_bytes())

    def patch(name, offset, value):
        at = data.rindex(name.encode()) - 46  # its entry in the directory
        data[at + offset : at + offset + len(value)] = value

    patch("locked.png", 8, b"\1\0")
    patch("method.png", 10, b"\x63\0")
    patch("crc.png", 16, b"\0\0\0\0")
    path.write_bytes(data)
    found = outcomes(path)
    assert found == {
        "locked.png": "unreadable",
        "method.png": "unsupported",
        "crc.png": "decode_error",
        "good.png": image,
        "sub\\windows.png": image,
        "../escape.png": "key_invalid",
        "bzip2.png": image,
        "link.png": "unreadable",
        "folder/old.png": image,
    }


def test_large_members_by_every_method(tmp_path, picture_bytes):
    image, path = picture_bytes(1) + random.Random(0).randbytes(2_500_000), tmp_path / "large.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
            archive.writestr(f"{method}.png", image, method)
    assert outcomes(path) == {"0.png": image, "8.png": image, "12.png": image}
    assert [item.locator.read(item.key, DecodePolicy(), 100) for item in listed(path)] == [image[:100]] * 3


def test_names_in_zips_of_other_code_pages(tmp_path, picture_bytes):
    path = tmp_path / "names.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("xx1.png", "xx2.png", "日本.png"):
            archive.writestr(name, picture_bytes(1))
    data = path.read_bytes().replace(b"xx1", "é1".encode()).replace(b"xx2", b"x\x822")
    path.write_bytes(data)
    assert list(outcomes(path)) == ["é1.png", "xé2.png", "日本.png"]


def test_zip64_prefixes_and_comments(tmp_path, monkeypatch, picture_bytes):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    path, image = tmp_path / "large.zip", picture_bytes(1)
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(5):
            archive.writestr(f"{n}.png", image)
        archive.comment = b"a comment with PK\5\6 in it"
    assert b"PK\6\6" in path.read_bytes()
    assert outcomes(path) == {f"{n}.png": image for n in range(5)}
    path.write_bytes(b"#!/bin/sh\nself-extracting" + path.read_bytes())
    assert outcomes(path) == {f"{n}.png": image for n in range(5)}


def test_bombs(tmp_path, monkeypatch, picture_bytes):
    monkeypatch.setattr(streams, "FREE_BYTES", 2**20)
    monkeypatch.setattr("ray_jobs.sources.zip_members.FREE_BYTES", 2**20)
    monkeypatch.setattr(tar_members, "MOST_CARRIED", 2**20)
    head, zeros = picture_bytes(1), bytes(2**24)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.png", head + zeros)
        archive.writestr("nothing.png", zeros)
    assert outcomes(tmp_path / "a.zip") == {"bomb.png": "too_large", "nothing.png": "not_an_image"}
    plain = make_tar(tmp_path / "plain.tar", ("1.png", head), ("notes.txt", zeros), ("2.png", head)).read_bytes()
    for suffix, pack in {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}.items():
        (tmp_path / f"b.tar.{suffix}").write_bytes(pack(plain))
        assert outcomes(tmp_path / f"b.tar.{suffix}") == {"1.png": head, f"b.tar.{suffix}": "too_large"}
    path = make_tar(tmp_path / "c.tar.gz", ("big.png", head + random.Random(0).randbytes(2**20)), mode="w:gz")
    assert outcomes(path) == {"big.png": "too_large"}


def test_an_xz_file_may_not_ask_for_all_memory(tmp_path, monkeypatch, picture_bytes):
    monkeypatch.setattr(streams, "XZ_MEMORY", 2**20)
    make_tar(tmp_path / "a.tar.xz", ("1.png", picture_bytes(1)), mode="w:xz")
    assert outcomes(tmp_path / "a.tar.xz") == {"a.tar.xz": "decode_error"}


def test_compressed_streams_in_parts(tmp_path, picture_bytes):
    plain = make_tar(tmp_path / "a.tar", ("1.png", picture_bytes(1)), ("2.png", picture_bytes(2))).read_bytes()
    for pack, ending in ((gzip.compress, b""), (bz2.compress, b""), (lzma.compress, bytes(8))):
        (tmp_path / "b").write_bytes(pack(plain[:700]) + pack(plain[700:]) + ending)
        assert outcomes(tmp_path / "b") == {"1.png": picture_bytes(1), "2.png": picture_bytes(2)}


def test_absurd_tar_headers(tmp_path, picture_bytes):
    long = special("x", tarfile.GNUTYPE_LONGNAME)
    long.size = 2**33
    extended = special("x", tarfile.XHDTYPE)
    extended.size = 2**33
    first = make_tar(tmp_path / "first.tar", ("1.png", picture_bytes(1))).read_bytes()[:1024]
    for member in (long, extended):
        (tmp_path / "a.tar").write_bytes(first + member.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
        assert outcomes(tmp_path / "a.tar") == {"1.png": picture_bytes(1), "a.tar": "decode_error"}


def test_what_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar")
    (tmp_path / "gone.zip").symlink_to("nowhere")
    assert outcomes(tmp_path) == {"gone.zip": "unreadable", "pipe.tar": "unreadable"}


def test_an_archive_that_was_replaced_after_the_listing(tmp_path, write_container, picture_bytes):
    for suffix in ("tar", "zip"):
        path = write_container(tmp_path / f"a.{suffix}", [("1.png", picture_bytes(1)), ("2.png", picture_bytes(2))])
        items = listed(path)
        assert outcome(items[1]) == picture_bytes(2)
        write_container(path, [("other.png", picture_bytes(3)), ("long", random.Random(0).randbytes(3000))])
        assert isinstance(outcome(items[1]), str)


def test_few_files_are_open_at_a_time(tmp_path, write_container, picture_bytes, monkeypatch):
    monkeypatch.setattr(handles, "MOST_OPEN", 3)
    monkeypatch.setattr(handles, "_handles", type(handles._handles)())
    for n in range(9):
        write_container(tmp_path / f"{n}.tar", [("1.png", picture_bytes(n))])
    before = len(os.listdir("/dev/fd"))
    assert [outcome(item) for item in listed(tmp_path)] == [picture_bytes(n) for n in range(9)]
    assert len(handles._handles) == 3 and len(os.listdir("/dev/fd")) <= before + 3


def damaged(data, seed):
    """Some bytes changed, cut out or repeated."""
    chance, data = random.Random(seed), bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at : at + 8] = struct.pack("<Q", chance.choice([0, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
        elif kind == 2:
            del data[at : at + chance.randint(1, 600)]
        else:
            data[at:at] = data[at : at + chance.randint(1, 600)]
        data = data or bytearray(b"x")
    return bytes(data)


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.xz"])
def test_damaged_archives_end_in_failures_and_nothing_else(tmp_path, write_container, picture_bytes, suffix):
    members = [(f"{n}/{n}.png", picture_bytes(n)) for n in range(4)] + [("p" * 150 + ".png", picture_bytes(9))]
    good = write_container(tmp_path / f"good.{suffix}", members).read_bytes()
    bad = tmp_path / f"bad.{suffix}"
    for seed in range(300):
        bad.write_bytes(damaged(good, seed))
        try:
            for item in listed(bad):
                found = outcome(item)
                assert isinstance(found, bytes) or found
        except DataError as error:
            assert "is no archive" in str(error)
    assert sorted(os.listdir(tmp_path)) == [f"bad.{suffix}", f"good.{suffix}"]


def test_members_read_alike_whatever_packs_them(tmp_path, write_container, picture_bytes, job, contents):
    """The route of an image does not change its record."""
    members = [(f"{n}.png", picture_bytes(n)) for n in range(5)]
    stores = []
    for suffix in ("zip", "tar", "tar.gz", "tar.bz2", "tar.xz"):
        path = write_container(tmp_path / f"a.{suffix}", members)
        job(f"archive:{path}", tmp_path / f"{suffix}.roi")
        stores.append(contents(tmp_path / f"{suffix}.roi"))
    assert len(stores[0]) == 5 and all(store == stores[0] for store in stores)
