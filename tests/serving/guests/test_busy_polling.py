"""Whether a server and its guests poll between messages is the user's to say: seen by the time they use."""

from __future__ import annotations

import os

import psutil
import pytest
from cli.parsing import parse_options, refusal
from serving.repositories import infer, repository, values
from support.server import ServerProcess
from support.waiting import WaitedInVain, until

from naiad.server import app

SPENT = 0.03
"""Seconds of CPU that a side which sleeps does not use between a few small requests and a look at its clock."""
LIMIT_US = 2_000_000


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _polls(server: ServerProcess, process: psutil.Process) -> bool:
    """Whether it uses time after its last answer; a busy machine may keep it from that once."""
    for number in range(4):
        assert values(infer(server, "identity", number)) == [number]
    before = _spent(process)
    for _ in range(100):
        if _spent(process) - before >= SPENT:
            return True
        if not server.get("/v2/health/live").status == 200:
            raise AssertionError(server.log)
    return False


def test_a_guest_polls_after_messages_that_are_closer_than_the_limit(tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    with ServerProcess(models, f"--busy-poll-us={LIMIT_US}", work=tmp_path) as server:
        (guest,) = server.children()
        try:
            until(lambda: _polls(server, guest), "a guest that polls", 8)
        except WaitedInVain:
            if os.getloadavg()[0] < 1:
                raise
            pytest.skip("others want the processors, where nobody is to poll")


@pytest.mark.parametrize(("flags", "expected"), [([], 321), (["--busy-poll-us=0"], 0), (["--busy-poll-us=70"], 70)])
def test_models_are_loaded_with_the_limit_of_the_flag_or_of_the_machine(monkeypatch, tmp_path, flags, expected):
    made = []
    monkeypatch.setattr(app, "default_busy_poll_us", lambda: 321)
    monkeypatch.setattr(app, "Loader", lambda settings, _: made.append(settings))

    app.build_loader(parse_options([f"--model-repository={tmp_path}", f"--env-store={tmp_path}", *flags], environ={}))

    assert [settings.busy_poll_us for settings in made] == [expected]


def test_a_guest_sleeps_between_messages_where_polling_is_off(tmp_path):
    with ServerProcess(repository(tmp_path / "models", ["identity"]), "--busy-poll-us=0", work=tmp_path) as server:
        (guest,) = server.children()
        assert not _polls(server, guest)


@pytest.mark.parametrize("value", ["-2", "soon"])
def test_an_invalid_limit_is_refused(value):
    assert "busy-poll-us" in refusal(f"--busy-poll-us={value}").message
