import pytest

from cache.client_access import Access, Address, each_server
from cache.errors import UsageError
from tests.cache.certificates import Authority


@pytest.mark.parametrize("target, urls", [
    ("grpc://a:1", ["grpc://a:1"]),
    ("grpc://a:1/coco", ["grpc://a:1/coco"]),
    ("grpc://a:1,b:2/coco", ["grpc://a:1/coco", "grpc://b:2/coco"]),
    ("grpc+tls://a, b:2", ["grpc+tls://a", "grpc+tls://b:2"]),
    ("grpc://a/x,grpc+tls://b/y", ["grpc://a/x", "grpc+tls://b/y"]),
    ("grpc://a/x,b", ["grpc://a/x", "grpc://b"]),
    ("grpc://[::1/x", ["grpc://[::1/x"]),
])  # fmt: skip
def test_several_servers_in_one_text(target, urls):
    assert each_server(target) == urls


@pytest.mark.parametrize("url, expected", [
    ("grpc://a", Address("a", 8815, False, None, "grpc://a:8815")),
    ("grpc+tls://A:1/coco.roi", Address("a", 1, True, "coco", "grpc+tls://a:1/coco")),
    ("grpc://[::1]:5/my%20photos/", Address("::1", 5, False, "my photos", "grpc://[::1]:5/my photos")),
])  # fmt: skip
def test_addresses(url, expected):
    address = Address.of(url)
    assert address == expected and address.server == address.shown.split("/my")[0].split("/coco")[0]


@pytest.mark.parametrize("url", ["grpc://a:0/x", "grpc://a:99999/x", "grpc://[::1/x", "grpc://a:b", "grpc:///x"])
def test_what_is_no_address(url):
    with pytest.raises(UsageError, match="is not grpc://HOST:PORT"):
        Address.of(url)


@pytest.mark.parametrize("host, refused", [
    ("127.0.0.1", False), ("127.9.9.9", False), ("[::1]", False), ("localhost", False), ("10.0.0.1", True),
    ("localhost.example.org", True), ("0.0.0.0", True),
])  # fmt: skip
def test_where_a_token_may_go(host, refused):
    Access("secret").check(Address.of(f"grpc+tls://{host}"))
    Access().check(Address.of(f"grpc://{host}"))
    if refused:
        with pytest.raises(UsageError, match="a token is not sent"):
            Access("secret").check(Address.of(f"grpc://{host}"))
    else:
        Access("secret").check(Address.of(f"grpc://{host}"))


def test_an_empty_token_is_none(monkeypatch):
    monkeypatch.setenv("ROIVAULT_TOKEN", " of the environment \n")
    assert Access("").bearer is None and Access("").headers() == []
    assert Access().bearer == "of the environment"
    assert Access("t").headers() == [(b"authorization", b"Bearer t")] and "sesame" not in repr(Access("sesame"))


@pytest.mark.parametrize("token, why", [(b"secret", "text, not bytes"), (5, "text, not int"), ("é", "no printable")])
def test_what_is_no_token(token, why):
    with pytest.raises(UsageError, match=why):
        Access(token).check(Address.of("grpc://127.0.0.1"))


def test_files_that_hold_no_certificates(tmp_path, monkeypatch):
    authority, text = Authority(tmp_path), tmp_path / "text"
    text.write_text("no certificate")
    mine, other = authority.pair("mine"), authority.pair("other")
    with pytest.raises(UsageError, match="text holds no certificates"):
        Access(tls_ca=text).certificates()
    monkeypatch.setenv("ROIVAULT_TLS_CERT", str(mine.cert))
    monkeypatch.setenv("ROIVAULT_TLS_KEY", str(other.key))
    with pytest.raises(UsageError, match="no certificate and its key"):
        Access().certificates()
    monkeypatch.setenv("ROIVAULT_TLS_KEY", str(mine.key))
    assert Access(tls_ca=authority.cert).certificates()["tls_root_certs"] == authority.cert.read_bytes()
