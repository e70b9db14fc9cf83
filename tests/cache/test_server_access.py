import hashlib

import pytest

from cache import InputNotFound, UsageError
from cache.server_access import Access, Tokens, check_exposure, is_loopback, read_tokens

ANNA, BERT = "anna-0123456789abcdef", "bert-0123456789abcdef"
LINES = f"""
# who may read what
anna {ANNA}
  bert\tsha256:{hashlib.sha256(BERT.encode()).hexdigest()}   coco,flickr
"""


def test_tokens_are_known_by_their_digests():
    tokens = Tokens(LINES, "tokens")
    assert tokens.access(ANNA) == Access("anna", None)
    assert tokens.access(BERT) == Access("bert", frozenset({"coco", "flickr"}))
    for wrong in ("", "anna", ANNA[:-1], ANNA + " ", ANNA.upper(), "\udcff", hashlib.sha256(BERT.encode()).hexdigest()):
        assert tokens.access(wrong) is None
    assert ANNA not in repr(vars(tokens))


def test_every_known_token_is_compared_in_constant_time(monkeypatch):
    import hmac

    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    tokens = Tokens(LINES, "tokens")
    for token in (ANNA, BERT, "neither"):
        compared.clear()
        tokens.access(token)
        assert len(compared) == 2 and all(len(a) == len(b) == 32 for a, b in compared)


def test_what_a_token_is_for():
    assert Access().may_read("any") and Access("a", frozenset({"coco"})).may_read("coco")
    assert not Access("a", frozenset({"coco"})).may_read("flickr") and not Access("a", frozenset()).may_read("coco")
    Tokens(LINES, "tokens").refuse_unknown(["flickr", "coco", "vg"])
    with pytest.raises(UsageError, match="bert is for flickr, served are coco"):
        Tokens(LINES, "tokens").refuse_unknown(["coco"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "holds no token"),
        ("# nothing", "holds no token"),
        (ANNA, "line 1: a line is NAME TOKEN"),
        (f"\nanna {ANNA} coco more", "line 2: a line is NAME TOKEN"),
        ("anna short-one", "fewer than 16"),
        ("anna sha256:abc", "64 hexadecimal"),
        ("anna pässwörd-0123456789", "no printable ASCII"),
        (f"anna {ANNA} ,", "line 1: ',' names no store"),
        (f"anna {ANNA}\nanna {BERT}", "twice"),
        (f"anna {ANNA}\nbert {ANNA}", "twice"),
    ],
)
def test_what_is_no_list_of_tokens_is_told_without_showing_one(line, why):
    with pytest.raises(UsageError, match=why) as caught:
        Tokens(line, "tokens")
    assert ANNA not in str(caught.value) and "short-one" not in str(caught.value)


def test_tokens_come_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("ROIVAULT_TOKENS", raising=False)
    assert read_tokens(None) is None
    monkeypatch.setenv("ROIVAULT_TOKENS", f"bert {BERT}")
    assert read_tokens(None).access(BERT).name == "bert"
    path = tmp_path / "tokens"
    path.write_text(LINES)
    path.chmod(0o640)
    assert read_tokens(path).access(ANNA).name == "anna"
    monkeypatch.setenv("ROIVAULT_TOKENS", "")
    with pytest.raises(UsageError, match="ROIVAULT_TOKENS holds no token"):
        read_tokens(None)


def test_token_files_that_cannot_be_used(tmp_path):
    path = tmp_path / "tokens"
    with pytest.raises(InputNotFound, match="--token-file"):
        read_tokens(path)
    with pytest.raises(InputNotFound):
        read_tokens(tmp_path)
    path.write_bytes(b"anna \xff")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="UTF-8"):
        read_tokens(path)
    path.write_text(LINES)
    for mode in (0o644, 0o602, 0o604):
        path.chmod(mode)
        with pytest.raises(UsageError, match="everybody on this machine.*chmod 600"):
            read_tokens(path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_on_this_machine_nothing_is_needed(host):
    assert is_loopback(host)
    for tls in (False, True):
        for tokens in (None, Tokens(LINES, "tokens")):
            check_exposure(host, tls, tokens, False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", "128.0.0.1"])
def test_other_addresses_need_tls_and_a_token(host):
    tokens = Tokens(LINES, "tokens")
    check_exposure(host, True, tokens, False)
    check_exposure(host, False, None, True)
    check_exposure(host, True, None, True)
    with pytest.raises(UsageError, match="--tls-cert and --tls-key and --token-file, or --insecure"):
        check_exposure(host, False, None, False)
    with pytest.raises(UsageError, match="give --token-file, or --insecure"):
        check_exposure(host, True, None, False)
    for insecure in (False, True):
        with pytest.raises(UsageError, match="tokens would travel in the open"):
            check_exposure(host, False, tokens, insecure)
