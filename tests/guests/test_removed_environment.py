"""A guest is started although its environment was removed from the store: it is prepared again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from guests.guests import IDENTITY, guest, launch_spec, run

from naiad.core.errors import ExecutionEnvironmentError, GuestExitedError


def test_a_removed_environment_is_prepared_again_before_a_guest_starts(tmp_path):
    python = tmp_path / "store" / "python"
    prepared = []

    def restore():
        prepared.append(python)
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)

    async def start():
        worker, _ = guest(replace(launch_spec(tmp_path, IDENTITY), python=python, restore=restore))
        await worker.start()
        await worker.stop(10)

    run(start())
    assert prepared == [python]
    run(start())
    assert prepared == [python]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ExecutionEnvironmentError("no such archive"), "cannot start 'm_0_0': no such archive"),
        (None, "cannot start 'm_0_0': /nowhere/python is gone, and its environment has another content now; load"),
    ],
)
def test_an_environment_that_cannot_be_prepared_again_is_explained(tmp_path, error, text):
    def restore():
        if error is not None:
            raise error

    async def start():
        worker, _ = guest(replace(launch_spec(tmp_path, IDENTITY), python=Path("/nowhere/python"), restore=restore))
        await worker.start()

    with pytest.raises(GuestExitedError) as refused:
        run(start())
    assert refused.value.message.startswith(text)
