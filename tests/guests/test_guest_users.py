"""Which user each model's guests run as."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
from cli.parsing import parse

from naiad.config.server import guest_user
from naiad.config.server.flag import UsageError
from naiad.config.server.guest_user import GuestUser, GuestUserRange
from naiad.core.errors import ResolutionError
from naiad.guests import guest_users
from naiad.guests.guest_users import GuestUsers


def test_without_a_range_all_models_have_the_given_user():
    user = GuestUser(5, 6)
    assert GuestUsers(user).user_of("a") is GuestUsers(user).user_of("b") is user
    assert GuestUsers(None).user_of("a") is None


def test_a_model_keeps_its_user_while_it_is_referred_to_and_numbers_are_used_again_late(monkeypatch):
    monkeypatch.setattr(guest_users.pwd, "getpwall", lambda: [SimpleNamespace(pw_uid=101)])
    users = GuestUsers(GuestUserRange(100, 103))
    a, b = users.user_of("a"), users.user_of("b")
    assert (a, b) == (GuestUser(100, 100), GuestUser(102, 102)), "101 belongs to a user of the system"
    assert users.user_of("a") is a
    del a
    gc.collect()
    c = users.user_of("c")
    assert c == GuestUser(103, 103), "not the number that was just given back"
    d = users.user_of("d")
    assert d == GuestUser(100, 100)
    with pytest.raises(ResolutionError, match=r"other models have all of uids 100 to 103; name a longer range with"):
        users.user_of("e")
    assert users.user_of("b") is b
    assert users.user_of("c") is c


@pytest.fixture
def may_switch(monkeypatch):
    monkeypatch.setattr(guest_user, "_missing_capabilities", list)


@pytest.mark.usefixtures("may_switch")
def test_a_model_that_is_loaded_again_has_the_user_that_wrote_its_files():
    users = GuestUsers(GuestUserRange(1_000_000, 1_000_009))
    first = users.user_of("a").uid
    gc.collect()
    assert users.user_of("b").uid != first
    assert users.user_of("a").uid == first


@pytest.mark.parametrize(
    ("maps", "is_mapped"),
    [
        ("0 0 4294967295", True),
        ("0 1000 1\n1 100000 65536", True),
        ("0 1000 1", False),
        ("0 0 60706\n60707 0 1000", False),
        ("0 0 61000\n61000 90000 1000", True),
    ],
)
def test_numbers_that_a_container_does_not_have_are_an_error_of_the_command_line(
    monkeypatch, tmp_path, maps, is_mapped
):
    (tmp_path / "map").write_text(maps)
    monkeypatch.setattr(guest_user, "_MAPS", (str(tmp_path / "map"),))
    if is_mapped:
        assert parse("--guest-user=auto").guests.user == GuestUserRange(60706, 61183)
        assert parse("--guest-user=auto:7-8").guests.user == GuestUserRange(7, 8)
    else:
        with pytest.raises(
            UsageError, match="maps not all of uids 60706 to 61183: name numbers that it maps, as in --gu"
        ):
            parse("--guest-user=auto")


def test_a_server_that_may_not_switch_users_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(guest_user, "_missing_capabilities", lambda: ["CAP_SETUID"])
    expected = "this server may not run guests as uids 60706 to 61183: start it as root, or give it CAP_SETUID"
    with pytest.raises(UsageError, match=expected):
        parse("--guest-user=auto")
