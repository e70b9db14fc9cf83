import pytest

from cache import UsageError
from cache.endpoints import address, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:80", ("::1", 80)),
        ("head:65535", ("head", 65535)),
    ],
)
def test_endpoint(text, endpoint):
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "1.5", "host:", ":80", "a b:80", "::1:80", "grpc://h:80"])
def test_what_is_no_endpoint_names_the_option(text):
    with pytest.raises(UsageError, match="--bind .*8815"):
        parse_endpoint(text, "--bind", 8815)


def test_addresses_are_written_as_in_urls():
    assert address("::1", 80) == "[::1]:80" and address("head", 80) == "head:80"
