"""Whether a model's text can define `auto_complete_config`."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from naiad.engine.loading.introspect import may_auto_complete

PLAIN = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


@pytest.fixture
def written(tmp_path):
    """Writes a model's text, and says whether it may complete its configuration."""

    def ask(text: str) -> bool:
        (tmp_path / "model.py").write_text(text)
        return may_auto_complete(tmp_path / "model.py")

    return ask


@pytest.mark.parametrize("text", [PLAIN, PLAIN.replace(":", "(object):", 1)])
def test_a_plain_class_without_the_hook_cannot_complete_its_configuration(written, text):
    assert not written(text)


@pytest.mark.parametrize(
    "text",
    [
        "class TritonPythonModel:\n    auto_complete_config = None\n",
        PLAIN.replace(":", "(Base):", 1),
        PLAIN.replace(":", "(metaclass=Meta):", 1),
        f"@decorated\n{PLAIN}",
        "from elsewhere import TritonPythonModel\n",
        "class TritonPythonModel\n",  # no Python: the guest says so
        f"{PLAIN}\nx = {'(' * 1000}{')' * 1000}\n",
    ],
)
def test_a_doubtful_file_may_complete_its_configuration(written, text):
    assert written(text)


def test_a_file_that_cannot_be_read_may_complete_its_configuration(tmp_path):
    assert may_auto_complete(tmp_path / "none.py")


def test_models_that_are_loaded_at_once_are_judged_alike(tmp_path):
    """Python 3.11 mixes up trees that threads build at the same time, where a collection lets one of them in."""
    functions = (
        f"    def f{i}(self):\n        return [({i}, [1, {{'a': (1, 2)}}]) for a in range({i})]\n" for i in range(40)
    )
    (tmp_path / "model.py").write_text(PLAIN + "".join(functions))
    found: list[object] = []

    def ask() -> None:
        try:
            found.extend(may_auto_complete(tmp_path / "model.py") for _ in range(8))
        except BaseException as error:
            found.append(error)

    def give_way(*_: object) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(300)
    try:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(give_way)

    assert found == [False] * 32
