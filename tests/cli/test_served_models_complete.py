"""Shells complete the models of the server that the command line names."""

from __future__ import annotations

from serving.written import write_model
from support.server import ServerProcess


def test_the_models_of_a_running_server_complete(tmp_path, completions):
    for name in ("sentiment", "segments", "topic"):
        write_model(tmp_path / "models", name)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        url = f"--url = http://{server.http_url}"
        found = completions(f"bench {url} se")
        assert found == {"plain,sentiment", "plain,segments"}
        assert "plain,topic" not in completions(f"bench topic {url} to"), "it has its argument"
        # A folder may be named, too.
        assert completions(f"bench {url} ./se") in ({"dir,./se"}, {"file,./se"})
    assert not any(each.startswith("plain,") for each in completions(f"bench {url} se"))
