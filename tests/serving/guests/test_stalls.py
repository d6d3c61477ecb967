"""Models without a limit whose `execute` makes no progress: it is reported, and nothing is restarted."""

from __future__ import annotations

import numpy as np
import pytest
from serving.repositories import repository
from support.threads import in_thread
from support.waiting import until

import naiad
from naiad.engine import engine
from naiad.guests import worker


@pytest.mark.server
def test_a_long_execute_is_logged_once_and_shown_until_it_is_over(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(worker, "STALLED_SECONDS", 0.5)
    monkeypatch.setattr(engine, "_RELEASE_SECONDS", 0.1)
    models, done = repository(tmp_path / "models", ("runs_code",)), tmp_path / "done"
    code = f"while not os.path.exists({str(done)!r}): time.sleep(0.01)\nreturn [answer(7)]"
    with naiad.Server(model_repository=models, flags=[f"--env-store={tmp_path / 'store'}"]) as server:
        model = server.model("runs_code")
        text = np.array(["import os\n" + code], np.object_)
        asking = in_thread(lambda: list(model.infer(inputs={"CODE": text}, request_id="abc")))
        until(lambda: "makes no progress" in caplog.text, "the line")
        assert model.ready()
        done.touch()
        assert asking.result(60)[0].outputs["OUT"].to_bytes_array().tolist() == [b"7"]
    lines = [record.getMessage() for record in caplog.records if "makes no progress" in record.getMessage()]
    assert len(lines) == 1
    assert "of model 'runs_code' version 1 makes no progress: execute of request 'abc', which is " in lines[0]
