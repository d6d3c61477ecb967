"""`naiad doctor --from-triton`: each kind of model of a repository has its item, with what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from naiad_stub.native.elf import write_library
from operations.doctor.repository import CODE, CONFIG, IO, ensemble, environment, model, parameter, write

from naiad.cli.main import main
from naiad_operations.doctor.migration import _KINDS

FLAGS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--env-build=never")
STUB = b"\x7fELF" + bytes(60)
AGENTS = 'model_repository_agents { agents { name: "checksum" } }\n'
LANGUAGE_MODEL = {"config.pbtxt": 'backend: "vllm"\n', "1/model.json": '{"model": "weights.gguf"}'}


@pytest.fixture
def checklist(tmp_path, capsys):
    """Run the doctor on models of a test; its items by kind, or what it prints."""

    def run(models, *flags):
        for name, files in models.items():
            write(tmp_path / "models" / name, files)
        write(tmp_path / "backends" / "shared", {"model.py": CODE})
        folders = [str(tmp_path / "models"), f"--backend-directory={tmp_path / 'backends'}"]
        main(["doctor", *folders, f"--env-store={tmp_path / 'store'}", *FLAGS, "--from-triton", *flags])
        printed = capsys.readouterr().out
        if "--json" not in flags:
            return printed
        return {item["kind"]: (item["state"], item["models"]) for item in json.loads(printed)["migration"]}

    return run


@pytest.mark.server
def test_each_kind_of_model_is_an_item_of_its_own(tmp_path, checklist):
    place = environment(tmp_path / "environment")
    assert checklist(
        {
            "add": model(),
            "both": ensemble("add"),
            "own_python": model(config=CONFIG + parameter("EXECUTION_ENV_PATH", place)),
            "with_stub": {**model(), "triton_python_backend_stub": STUB},
            "common": {"config.pbtxt": f'backend: "shared"{IO}', "1/notes": ""},
            "chat": LANGUAGE_MODEL,
            "resnet": {"config.pbtxt": f'platform: "tensorrt_plan"{IO}', "1/model.plan": ""},
            "exported": {"config.pbtxt": f'platform: "onnxruntime_onnx"{IO}', "1/model.onnx": ""},
            "trees": {"config.pbtxt": f'backend: "fil"{IO}', "1/xgboost.json": ""},
            "engine": {"config.pbtxt": f'backend: "tensorrtllm"{IO}', "1/notes": ""},
            "lost": {"config.pbtxt": f'backend: "nowhere"{IO}', "1/notes": ""},
            "torn": {"config.pbtxt": "backend: ", "1/model.py": CODE},
            "signed": model(config=CONFIG + AGENTS),
            "picky": model(config=CONFIG + parameter("TRITON_BATCH_STRATEGY_PATH", "strategy.so")),
            "broken": model("import triton_python_backend_utils\n"),
            "colours": {
                "config.pbtxt": f'backend: "own"{IO}',
                "libtriton_own.so": write_library(["TRITONBACKEND_ModelInstanceExecute"], "libtriton_own.so"),
                "1/.keep": "",
            },
        },
        "--json",
    ) == {
        "plain": ("action", ["add", "broken"]),  # `broken` has a finding
        "ensemble": ("ready", ["both"]),
        "environment": ("ready", ["own_python"]),
        "compiled-stub": ("ready", ["with_stub"]),
        "shared-backend": ("ready", ["common"]),
        "saved-model": ("action", ["exported", "trees"]),  # may not install their environments
        "native": ("ready", ["colours"]),
        "vllm": ("action", ["chat"]),
        "framework": ("unsupported", ["engine", "resnet"]),
        "unknown-backend": ("action", ["lost"]),
        "repository-agents": ("unsupported", ["signed"]),
        "batching-library": ("action", ["picky"]),
        "unreadable": ("action", ["torn"]),
    }


def test_the_checklist_says_what_to_do_before_the_findings(checklist):
    printed = checklist({"add": model(), "resnet": {"config.pbtxt": f'backend: "openvino"{IO}', "1/model.xml": ""}})

    assert printed.startswith(
        "[x] models with their own model.py: add\n    served as they are, under the server's Python\n"
        "[!] models of a backend that naiad lacks: resnet\n"
    )
    assert "    -> load the file in a model.py with the framework's Python package" in printed
    assert printed.index("[ ] the server's command line") < printed.index("error: resnet")


def test_without_the_flag_there_is_no_checklist(tmp_path, capsys):
    write(tmp_path / "models" / "add", model())

    assert main(["doctor", str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}", *FLAGS, "--json"]) == 0

    assert "migration" not in json.loads(capsys.readouterr().out)


def test_the_page_lists_the_kinds_of_models():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "doctor.md").read_text()
    table = page.partition("| kind | models |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [item.kind for item in _KINDS]
