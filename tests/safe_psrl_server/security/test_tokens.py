"""Tokens: made, kept as hashes, found, and struck out."""

import stat
from pathlib import Path

import pytest

from safe_psrl_server.security.identities import IdentitiesError, IdentityStore, create_token, read_identities, revoke_tokens
from safe_psrl_server.security.roles import Role
from safe_psrl_server.security.tokens import digest_of, id_of, is_token, new_token


def test_a_token_has_256_random_bits_and_an_id() -> None:
    made = [new_token() for _ in range(100)]
    assert len({token.text for token in made}) == 100
    assert all(len(token.text.split("_", 2)[2]) == 43 for token in made)
    assert all(id_of(token.text) == token.id for token in made)


def test_only_the_very_token_fits_its_hash() -> None:
    token = new_token()
    assert is_token(token.text, token.sha256)
    assert not is_token(token.text + "x", token.sha256)
    assert not is_token(new_token().text, token.sha256)
    assert not is_token(token.text, None)


@pytest.mark.parametrize("text", ["", "x", "spsrl", "spsrl_", "spsrl_12345678", "spsrl_12345678_", "other_12345678_x"])
def test_other_text_has_no_id(text: str) -> None:
    assert id_of(text) == ""


def test_the_file_has_the_hash_alone_and_is_its_owners(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    text = create_token(file, "line-7", [Role.ACT], ["site/*"])
    kept = file.read_text()
    assert text not in kept
    assert text.split("_", 2)[2] not in kept
    assert digest_of(text) in kept
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_tokens_of_one_name_are_struck_out_together_or_by_id(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    first, second = (create_token(file, "line-7", [Role.ACT], ["site/*"]) for _ in range(2))
    other = create_token(file, "line-8", [Role.READ], ["*"])
    assert revoke_tokens(file, id_of(first)) == 1
    store = IdentityStore(file)
    assert [store.by_token(text) is not None for text in (first, second, other)] == [False, True, True]
    create_token(file, "line-7", [Role.ACT], ["site/*"])
    assert revoke_tokens(file, "line-7") == 2
    assert revoke_tokens(file, "line-7") == 0
    assert [entry.name for entry in read_identities(file).token] == ["line-8"]


def test_an_id_with_another_tokens_secret_is_nobody(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    one, two = (create_token(file, name, [Role.ADMIN], ["*"]) for name in ("one", "two"))
    forged = f"spsrl_{id_of(one)}_{two.split('_', 2)[2]}"
    assert IdentityStore(file).by_token(forged) is None


def test_certificates_written_by_hand_stay(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    entry = 'name = "line-7"\nsubject = "*.example"\nroles = ["act"]\nagents = ["site/*"]\ncalls_per_second = 5.0\n'
    file.write_text("[[certificate]]\n" + entry)
    create_token(file, "ops", [Role.ADMIN], ["*"])
    revoke_tokens(file, "ops")
    (kept,) = read_identities(file).certificate
    assert (kept.name, kept.subject, kept.calls_per_second) == ("line-7", "*.example", 5.0)


@pytest.mark.parametrize(("name", "pattern"), [("", "*"), ("a b", "*"), ("a\n[[token]]", "*"), ("a", "")])
def test_a_name_or_pattern_that_cannot_be_is_refused(tmp_path: Path, name: str, pattern: str) -> None:
    file = tmp_path / "identities.toml"
    with pytest.raises(IdentitiesError):
        create_token(file, name, [Role.ACT], [pattern])
    assert not file.exists()


def test_the_store_is_read_again_when_the_file_changes(tmp_path: Path) -> None:
    file, now = tmp_path / "identities.toml", [0.0]
    first = create_token(file, "first", [Role.ACT], ["*"])
    store = IdentityStore(file, lambda: now[0])
    second = create_token(file, "second", [Role.ACT], ["*"])
    assert store.by_token(second) is None
    now[0] = 2.0
    assert store.by_token(second) is not None
    file.unlink()
    now[0] = 4.0
    assert store.by_token(first) is not None
