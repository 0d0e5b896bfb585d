"""Keys are drawn, written down as hashes and found again by their holder's name."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from cluster.gateway import auth
from cluster.gateway.auth import ANONYMOUS, ApiKey, KeyRing, hash_key, new_key, parse_key_lines, parse_key_pairs


def test_a_new_key_is_known_by_its_line():
    key, known = new_key("alice")
    assert len(key) > 40
    assert new_key("alice")[0] != key
    assert parse_key_lines(known.line) == [known] == [hash_key("alice", key)]
    assert known.digest == hashlib.sha256(key.encode()).digest()
    assert key not in known.line


def test_a_file_may_have_comments_and_empty_lines():
    one, other = hash_key("one", "1"), hash_key("other", "2")
    text = f"# keys\n\n  {one.line}  # first\n{other.name}\t{other.digest.hex().upper()}\r\n"
    assert parse_key_lines(text) == [one, other]


@pytest.mark.parametrize("line", ["alice", f"alice {'0' * 63}", f"alice {'0' * 64} x", f"alice {'g' * 64}", "0" * 64])
def test_a_wrong_line_is_named_and_not_shown(line):
    with pytest.raises(ValueError, match="line 2 must be a name and a SHA-256") as error:
        parse_key_lines(f"\n{line}\n")
    assert line not in str(error.value)


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "naïve", 'quo"te', "new\nline"])
def test_a_name_is_fit_for_logs_and_metrics(name):
    with pytest.raises(ValueError, match="is no name for a key"):
        ApiKey(name, b"")


def test_the_environment_holds_names_and_keys():
    assert parse_key_pairs(" alice=k1, bob=k=2\nbob=k3 ") == [
        hash_key("alice", "k1"),
        hash_key("bob", "k=2"),
        hash_key("bob", "k3"),
    ]
    assert parse_key_pairs("") == []


@pytest.mark.parametrize("text", ["secret", "a=1,secret", "a=1 a=", "a=clé"])
def test_a_wrong_pair_does_not_show_its_key(text):
    with pytest.raises(ValueError, match="must be") as error:
        parse_key_pairs(text)
    assert "secret" not in str(error.value)
    assert "clé" not in str(error.value)


@given(st.lists(st.binary(max_size=8), max_size=8, unique=True), st.binary(max_size=8))
def test_only_the_very_key_is_found(keys, asked):
    ring = KeyRing(ApiKey(f"holder-{index}", hashlib.sha256(key).digest()) for index, key in enumerate(keys))
    assert ring.holder(asked) == (f"holder-{keys.index(asked)}" if asked in keys else None)


@pytest.mark.parametrize("asked", [b"k0", b"k4", b"k9", b"none", b""])
def test_every_key_is_compared_whole_whatever_is_asked(monkeypatch, asked):
    """The comparisons made, and so the time taken, are the same for each key and for none."""
    compared, compare_digest = [], hmac.compare_digest

    def compare(known, digest):
        compared.append((len(known), len(digest)))
        return compare_digest(known, digest)

    ring = KeyRing(hash_key(f"n{index}", f"k{index}") for index in range(10))
    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    ring.holder(asked)
    assert compared == [(32, 32)] * 10


def test_without_keys_all_are_anonymous():
    assert KeyRing([]).caller(Headers({})) == ANONYMOUS
    assert KeyRing([hash_key("a", "k")]).caller(Headers({})) is None
