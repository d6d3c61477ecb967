"""What a guest asks and tells its host: metrics, control of models, readiness. Other interpreters: `test_interpreters`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import triton_python_backend_utils
from naiad_stub import runtime

STUBS = Path(triton_python_backend_utils.__file__).parent
CHECKS = Path(__file__).with_name("queries_check.py")


@pytest.fixture
def checks(monkeypatch):
    """The checks as a module of this process, where a failure has a line."""
    monkeypatch.setattr(sys, "argv", [str(CHECKS), str(STUBS)])
    monkeypatch.setattr(sys, "path", sys.path[:])
    spec = importlib.util.spec_from_file_location("queries_check", CHECKS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = runtime.current()
    yield module
    module.close_all(before)


def test_metrics_travel_merged_and_in_order(checks):
    checks.check_a_deleted_family_takes_its_metrics_along(checks.check_changes_travel_merged_and_in_order())


def test_metrics_have_the_rules_of_the_reference(checks):
    checks.check_rules_of_metrics()


def test_a_model_controls_other_models(checks):
    checks.check_control()


def test_many_threads_query_at_once(checks):
    checks.check_many_threads_ask_at_once()


def test_a_model_says_whether_it_is_ready(checks):
    checks.check_readiness()


def test_queries_and_messages_of_a_guest_are_those_that_the_host_expects():
    done = subprocess.run([sys.executable, CHECKS, STUBS], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
