"""Tables with images in their rows, good and odd."""

import base64
import bz2
import csv
import gzip
import io
import os
import random

import pytest

from cache import DataError, UsageError
from extractor.images import DecodePolicy, ImageError
from ray_jobs.sources import delimited, open_source, parquet_rows, table

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def listed(spec, rule=None):
    return list(open_source(f"table:{spec}", rule).items())


def outcome(item):
    try:
        return item.locator.read(item.key, DecodePolicy())
    except ImageError as error:
        assert error.key == item.key
        return error.kind


def outcomes(spec):
    return {item.key: outcome(item) for item in listed(spec)}


def text64(data):
    return base64.b64encode(data).decode()


def write_parquet(path, group=3, **columns):
    parquet.write_table(pyarrow.table(columns), path, row_group_size=group)
    return path


@pytest.mark.parametrize("suffix", ["tsv", "csv", "tsv.gz", "csv.bz2"])
def test_rows_with_quotes_line_breaks_and_odd_fields(tmp_path, picture_bytes, suffix):
    image = picture_bytes(1)
    rows = [
        ["caption", "id", "image", "more"],
        ['says "hi"', "1", text64(image), ""],
        ["over\ntwo lines", "2", text64(image), ""],
        ["nothing", "3", "", ""],
        ["no image", "4", text64(b"just some text"), ""],
        ["not base64", "5", "###", ""],
        ["python's", "6", repr(base64.b64encode(image)), ""],
        ["url safe", "7", base64.urlsafe_b64encode(image).decode().rstrip("="), ""],
        ["data url", "8", "data:image/png;base64," + text64(image), ""],
        ["", "", text64(image), ""],
        ["line\u2028separator \x85 \x0b", "a/9.png", text64(image), ""],
        ["more fields", "10", text64(image), "", "x"],
    ]
    file = io.StringIO(newline="")
    csv.writer(file, delimiter="\t" if "tsv" in suffix else ",").writerows(rows)
    content = b"\xef\xbb\xbf" + file.getvalue().encode() + b"\r\nshort\r\n"
    pack = {"gz": gzip.compress, "bz2": bz2.compress}.get(suffix[4:], bytes)
    path = tmp_path / f"rows.{suffix}"
    path.write_bytes(pack(content))
    assert outcomes(path) == {
        **dict.fromkeys("12678", image),
        "a/9.png": image,
        "10": image,
        "3": "empty",
        "4": "not_an_image",
        "5": "decode_error",
        f"rows.{suffix}#8": "key_invalid",
        f"rows.{suffix}#11": "unreadable",
    }
    odd = listed(path)[-1]
    assert odd.source == f"{path}, line 15" and "line 15 has 1 fields" in odd.locator.message
    assert [item.key for item in listed(path, "stem")][9] == "9"


def test_columns_by_option(tmp_path, picture_bytes):
    path, image = tmp_path / "t.csv", picture_bytes(1)
    path.write_text(f"thumb;who\n{text64(image)};x\n")
    assert outcomes(f"{path}?image=thumb&key=who&separator=;") == {"x": image}
    assert outcomes(f"{path}?image=thumb&key=%23&separator=;") == {"0": image}
    assert outcomes(f"{path}?header=no&key=1&image=0&separator=;") == {"who": "decode_error", "x": image}
    for query, message in {
        "separator=;": "no column of the images.*'thumb', 'who'",
        "image=thumb&separator=;": "no column of the keys",
    }.items():
        with pytest.raises(DataError, match=message):
            open_source(f"table:{path}?{query}")
    for query in ("header=maybe", "header=no&key=who", "separator=ab", "colour=red", "image=a&key"):
        with pytest.raises(UsageError):
            open_source(f"table:{path}?{query}")


def test_a_path_that_ends_like_a_table_needs_no_name(tmp_path, picture_bytes):
    (tmp_path / "t.csv").write_text(f"who,image\nx,{text64(picture_bytes(1))}\n")
    source = open_source(f"{tmp_path}/t.csv?key=who")
    assert (source.name, [item.key for item in source.items()]) == ("table", ["x"])


def test_plain_quotes(tmp_path, picture_bytes):
    image = text64(picture_bytes(1))
    path = tmp_path / "t.tsv"
    path.write_text(f'key\tcaption\timage\n1\t"Foo" bar\t{image}\n2\t"open\t{image}\n3\tc\t{image}\n4\td\t{image}\n')
    found = listed(path)
    assert [item.key for item in found] == ["t.tsv#0", "t.tsv"] and found[1].hides
    assert "line 3" in found[1].locator.message and "quotes=no" in found[1].locator.message
    assert outcomes(f"{path}?quotes=no") == dict.fromkeys("1234", picture_bytes(1))


def test_a_quote_that_takes_in_whole_rows(tmp_path, picture_bytes):
    image = text64(picture_bytes(1))
    rows = f'0\tz\t{image}\n1\t"a\t{image}\n2\tb"\t{image}\n3\tc\t{image}\n'
    (tmp_path / "t.tsv").write_text(f"key\tcaption\timage\n{rows}")
    assert [(item.key, item.hides) for item in listed(tmp_path / "t.tsv")] == [("0", False), ("t.tsv", True)]


def test_rows_and_fields_have_limits(tmp_path, monkeypatch, picture_bytes):
    monkeypatch.setattr(delimited, "MOST_ROW", 5000)
    image = text64(picture_bytes(1))
    path = tmp_path / "t.tsv"
    path.write_text(f"key\timage\n1\t{image}\n2\t{'x' * 9000}\n")
    found = outcomes(path)
    assert found == {"1": picture_bytes(1), "t.tsv": "decode_error"}
    (tmp_path / "zeros.tsv").write_bytes(bytes(100_000))
    with pytest.raises(DataError, match="zeros.tsv"):
        open_source(f"table:{tmp_path}/zeros.tsv")
    assert csv.field_size_limit() >= 2**27


def test_large_fields(tmp_path, picture_bytes):
    image = picture_bytes(1) + bytes(300_000)  # more than csv accepts by itself
    (tmp_path / "t.csv").write_text(f"key,image\n1,{text64(image)}\n")
    assert outcomes(tmp_path / "t.csv") == {"1": image}


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_cut_compressed_table_gives_what_it_has_and_says_so(tmp_path, picture_bytes, keep):
    rows = "".join(f"{n}\t{text64(picture_bytes(n))}\n" for n in range(500))
    packed = gzip.compress(f"key\timage\n{rows}".encode())
    (tmp_path / "t.tsv.gz").write_bytes(packed[: int(len(packed) * keep)])
    items = listed(tmp_path / "t.tsv.gz")
    assert items[-1].hides and outcome(items[-1]) == "truncated"
    assert 500 * keep * 0.6 < len(items) < 500 and outcome(items[0]) == picture_bytes(0)


def test_parquet_columns_of_every_kind(tmp_path, picture_bytes):
    images = [picture_bytes(n) for n in range(8)]
    keys = [f"k{n}" for n in range(8)]
    expected = dict(zip(keys, images, strict=True))
    path = tmp_path / "t.parquet"
    assert outcomes(write_parquet(path, key=keys, image=images)) == expected
    assert outcomes(write_parquet(path, key=keys, image=[text64(i) for i in images])) == expected
    assert outcomes(write_parquet(path, key=keys, image=[list(i) for i in images])) == expected
    structs = [{"bytes": i, "path": f"{k}.png"} for k, i in expected.items()]
    assert outcomes(write_parquet(path, image=structs)) == {f"{k}.png": i for k, i in expected.items()}
    assert outcomes(write_parquet(path, image=structs, id=list(range(8)))) == {str(n): i for n, i in enumerate(images)}
    large = pyarrow.array(images, pyarrow.large_binary())
    assert outcomes(f"{write_parquet(path, blob=large, who=keys)}?image=blob&key=who") == expected


def test_odd_rows_of_parquet(tmp_path, picture_bytes):
    image = picture_bytes(1)
    rows = {"key": ["a", None, "c", "d"], "image": [image, image, None, b"text"]}
    assert outcomes(write_parquet(tmp_path / "t.parquet", **rows)) == {
        "a": image,
        "t.parquet#1": "key_invalid",
        "c": "empty",
        "d": "not_an_image",
    }
    paths = [{"bytes": None, "path": "x.png"}]
    assert outcomes(write_parquet(tmp_path / "u.parquet", image=paths)) == {"x.png": "missing"}
    assert outcomes(write_parquet(tmp_path / "v.parquet", key=["a"], image=[1.5])) == {"a": "not_an_image"}


def test_rows_of_parquet_in_any_order_read_each_group_a_few_times(tmp_path, picture_bytes, monkeypatch):
    monkeypatch.setattr(parquet_rows, "CELLS_AT_ONCE", 4)
    monkeypatch.setattr(parquet_rows, "BATCHES_KEPT", 3)
    images = [picture_bytes(n) for n in range(60)]
    path = write_parquet(tmp_path / "t.parquet", group=30, key=[str(n) for n in range(60)], image=images)
    items = listed(path)
    passes = []
    restart = parquet_rows._Cursor._restart
    monkeypatch.setattr(parquet_rows._Cursor, "_restart", lambda self: (passes.append(self), restart(self)))
    assert [outcome(item) for item in items] == images
    assert len(passes) == 2
    near = sorted(range(60), key=lambda n: n + random.Random(n).randint(0, 6))  # as decode threads ask
    assert [outcome(items[n]) for n in near] == [images[n] for n in near]
    assert len(passes) <= 5
    assert [outcome(item) for item in reversed(items)] == images[::-1]


@pytest.mark.parametrize("name", ["t.parquet", "t.tsv", "t.tsv.gz"])
def test_damaged_tables_end_in_failures_and_nothing_else(tmp_path, picture_bytes, write_container, name):
    good = write_container(tmp_path / name, [(f"k{n}", picture_bytes(n)) for n in range(6)]).read_bytes()
    bad = tmp_path / f"bad.{name}"
    for seed in range(200):
        chance, data = random.Random(seed), bytearray(good)
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(data) - 1)
            if chance.random() < 0.6:
                data[at] = chance.randrange(256)
            else:
                del data[at : at + chance.randint(1, 200)]
        bad.write_bytes(data)
        try:
            for item in listed(bad):
                assert outcome(item)
        except DataError as error:
            assert "bad." in str(error)
    assert sorted(os.listdir(tmp_path)) == sorted([name, f"bad.{name}"])


def test_several_tables(tmp_path, picture_bytes, write_container, job):
    for n in range(2):
        write_container(tmp_path / f"{n}.tsv", [(f"k{n}", picture_bytes(n)), ("same", picture_bytes(7))])
    (tmp_path / "bad.tsv").write_text("a\tb\n1\t2\n")
    summary = job(f"table:{tmp_path}/*.tsv", tmp_path / "s.roi", max_failures="90%")
    assert (summary.records, summary.failures) == (3, {"duplicate_key": 1, "unreadable": 1})
    assert summary.exit_code == 65 and table.is_table("x.CSV.GZ")
