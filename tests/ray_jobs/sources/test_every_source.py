"""What holds for every entry of SOURCES, on the miniature that its `examples` describe; a new source needs no more."""

import pickle

import pytest

from cache import InputNotFound, UsageError, open_store
from extractor.images import DecodePolicy
from ray_jobs.check import check
from ray_jobs.sources import SOURCES, open_source, source_class


@pytest.fixture(params=list(SOURCES))
def name(request):
    return request.param


@pytest.fixture
def miniature(name, build, tmp_path):
    """(SOURCE, bytes of the picture of each key)."""
    expected = build(source_class(name).examples, tmp_path / "data")
    return f"{name}:{tmp_path / 'data'}", expected


def test_it_describes_itself(name):
    cls = source_class(name)
    assert cls.name == name
    for text in (cls.title, cls.expects, cls.key_form, *cls.options, *cls.options.values(), *cls.key_rules):
        assert text and isinstance(text, str)
    assert len(cls.examples) == len(set(cls.examples.values())) >= 2
    assert all(count is None or count > 0 for count in cls.counts.values())
    assert cls.__doc__


def test_keys_and_bytes_are_those_of_the_examples(miniature):
    spec, expected = miniature
    items = list(open_source(spec).items())
    assert {item.key: item.locator.read(item.key, DecodePolicy()) for item in items} == expected
    assert len(items) == len(expected)
    for item in items:
        head = item.locator.read(item.key, DecodePolicy(), 16)
        assert expected[item.key].startswith(head) and len(head) == 16
        assert str(item.source) and "data" in item.source


def test_the_order_depends_on_names_alone(name, miniature, build, tmp_path):
    spec, _ = miniature
    build(source_class(name).examples, tmp_path / "again" / "data", backwards=True)
    again = open_source(f"{name}:{tmp_path}/again/data").items()
    assert [item.key for item in open_source(spec).items()] == [item.key for item in again]


def test_locators_are_small_and_work_in_other_processes(miniature):
    spec, expected = miniature
    for item in open_source(spec).items():
        pickled = pickle.dumps(item)
        assert len(pickled) < 1000 + item.carried
        again = pickle.loads(pickled)
        assert again.locator.read(again.key, DecodePolicy()) == expected[item.key]
        assert len(repr(item.locator)) < 1000


def test_options_and_paths_that_are_none(name, tmp_path):
    with pytest.raises(InputNotFound, match="gone"):
        open_source(f"{name}:{tmp_path}/gone")
    with pytest.raises(UsageError, match="names no path"):
        open_source(f"{name}:")
    if source_class(name).options:
        with pytest.raises(UsageError, match="no option 'colour'"):
            open_source(f"{name}:{tmp_path}?colour=red")


def test_extraction_that_dies_and_is_continued(miniature, job, tmp_path, contents, monkeypatch):
    spec, expected = miniature
    whole = job(spec, tmp_path / "whole.roi")
    assert (whole.listed, whole.records, whole.failed, whole.exit_code) == (len(expected), len(expected), 0, 0)
    assert set(open_store(str(tmp_path / "whole.roi")).keys()) == set(expected)
    assert job(spec, tmp_path / "whole.roi").already == len(expected) and not job.keys

    monkeypatch.setattr("ray_jobs.local.UNIT", 1)
    monkeypatch.setenv("FAKE_RAISE", [item.key for item in open_source(spec).items()][-1])
    with pytest.raises(RuntimeError, match="a bug of the model"):
        job(spec, tmp_path / "died.roi")
    monkeypatch.delenv("FAKE_RAISE")
    rest = job(spec, tmp_path / "died.roi")
    assert rest.new + rest.already == len(expected) and rest.new >= 1
    assert contents(tmp_path / "died.roi") == contents(tmp_path / "whole.roi")


def test_limit(miniature, job, tmp_path):
    spec, _ = miniature
    first = next(open_source(spec).items()).key
    assert job(spec, tmp_path / "one.roi", limit=1).records == 1 and job.keys == [first]


def test_check_finds_everything_and_tells_damage(miniature, tmp_path):
    spec, expected = miniature
    report = check(spec, quiet=True, full=True)
    assert report.found == len(expected) and not (report.unreadable or report.duplicates or report.others)
    assert sum(part.found for part in report.parts.values()) == len(expected)
    for path in (tmp_path / "data").rglob("*.*"):
        if path.is_file():
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 10])
            report = check(spec, quiet=True, full=True)
            assert report.exit_code == 65 and report.unreadable, path
            path.write_bytes(whole)


@pytest.mark.slow
def test_extraction_that_is_killed_and_continued(miniature, command, tmp_path, contents):
    spec, expected = miniature
    keys = [item.key for item in open_source(spec).items()]
    process = command.start(spec, tmp_path / "killed.roi", hold=keys[-1])
    command.wait_for(len(keys), process)
    process.kill()
    process.wait()
    assert command.run(spec, tmp_path / "killed.roi").returncode == 0
    assert set(contents(tmp_path / "killed.roi")) == set(expected)
