import pytest

from ray_jobs.sources.patterns import expand_braces, find, is_pattern, split_fixed


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("a.jpg", ["a.jpg"]),
        ("{a,b}.jpg", ["a.jpg", "b.jpg"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("x{000..002}.tar", ["x000.tar", "x001.tar", "x002.tar"]),
        ("{9..11}", ["9", "10", "11"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{a,{b,c}d}", ["a", "bd", "cd"]),
        ("{x}", ["{x}"]),
        ("{x}{a,b}", ["{x}a", "{x}b"]),
        ("{a,", ["{a,"]),
        ("a}{", ["a}{"]),
        ("{,b}", ["", "b"]),
    ],
)
def test_braces_expand_as_in_bash(pattern, expanded):
    assert expand_braces(pattern) == expanded


def test_fixed_part():
    assert split_fixed("a/b/*.jpg") == ("a/b", ["*.jpg"])
    assert split_fixed("/*/x") == ("/", ["*", "x"])
    assert split_fixed("*.jpg") == (".", ["*.jpg"])
    assert split_fixed("a/x.jpg") == ("a", ["x.jpg"])
    assert is_pattern("a?") and is_pattern("[a]") and is_pattern("{a,b}") and not is_pattern("a b-c.jpg")


def test_find(tmp_path):
    for name in ("b/2", "b/10", "a/1", ".h/1", "c"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "a" / "link").symlink_to("../b")

    def names(pattern):
        return [path.removeprefix(f"{tmp_path}/") for path in find(f"{tmp_path}/{pattern}")]

    assert names("*") == ["a", "b", "c"]
    assert names("*/*") == ["a/1", "a/link", "b/10", "b/2"]
    assert names(".*/1") == [".h/1"]
    assert names("**/[0-9]") == ["a/1", "b/2"]
    assert names("{b,a}/{1,2}") == ["b/2", "a/1"]
    assert names("none/*") == names("c/*") == []
