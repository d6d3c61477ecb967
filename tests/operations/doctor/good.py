"""Models that would be served, each of a kind of its own."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path

from httptools.parser import parser as compiled  # any compiled module of this Python
from operations.doctor.repository import CODE, CONFIG, IO, Files, ensemble, environment, model, parameter

BACKEND = {"shared/model.py": "import partner\n" + CODE, "shared/partner.py": "import json\n"}
OPTIONAL = """
from __future__ import annotations
from typing import TYPE_CHECKING
import contextlib, sys
if TYPE_CHECKING:
    import no_such_package
try:
    import cupy
except ImportError:
    cupy = None
try:
    import tensorrt.plugins
except (ImportError, OSError):
    pass
if sys.platform == "win32":
    import winreg
with contextlib.suppress(ImportError):
    import no_such_package.either
"""
EXECUTE = "    def execute(self, requests):\n"
GOOD: dict[str, Files] = {
    "fine": model(),
    "no_configuration": {
        "1/model.py": CODE + "\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    },
    "optional_imports": model(OPTIONAL + CODE),
    "standard_library": model("import os.path, xml.etree.ElementTree as tree\nfrom concurrent import futures\n" + CODE),
    "numpy_parts": model("import numpy.linalg\nfrom numpy.random import default_rng\n" + CODE),
    "module_beside": model("import beside\n" + CODE) | {"1/beside.py": "import numpy\n"},
    "module_of_the_model": model("import common\n" + CODE) | {"common.py": ""},
    "relative_module": model("from .beside import x\nfrom . import beside\n" + CODE) | {"1/beside.py": "x = 1\n"},
    "package_beside": model("from parts.inner import x\nimport parts.inner\n" + CODE)
    | {"1/parts/__init__.py": "", "1/parts/inner.py": "from ..parts import other\nx = 1\n", "1/parts/other.py": ""},
    "folder_without_init": model("from parts import inner\nimport parts.inner\n" + CODE) | {"1/parts/inner.py": ""},
    "modules_in_a_ring": model("import one\n" + CODE) | {"1/one.py": "import two\n", "1/two.py": "import one\n"},
    "class_of_another_module": model("from beside import TritonPythonModel\n") | {"1/beside.py": CODE},
    "everything_of_another_module": model("from beside import *\n") | {"1/beside.py": CODE},
    "class_by_assignment": model(CODE.replace("TritonPythonModel", "Model") + "\nTritonPythonModel = Model\n"),
    "inherited_execute": model(
        CODE.replace("TritonPythonModel", "Base") + "\nclass TritonPythonModel(Base):\n    pass\n"
    ),
    "base_of_another_module": model("import abc\nclass TritonPythonModel(abc.ABC):\n    pass\n"),
    "decorated_class": model("def give(kind):\n    return kind\n@give\nclass TritonPythonModel:\n    pass\n"),
    "execute_by_assignment": model("class TritonPythonModel:\n    execute = lambda self, requests: []\n"),
    "execute_of_any_arguments": model(
        "class TritonPythonModel:\n    def execute(self, *requests):\n        return []\n"
    ),
    "decorated_execute": model(
        "import functools\nclass TritonPythonModel:\n    @functools.lru_cache\n    def execute(self): ...\n"
    ),
    "coroutine": model(CODE.replace("def execute", "async def execute")),
    "inner_generator": model(
        f"class TritonPythonModel:\n{EXECUTE}        def each():\n            yield 1\n        return list(each())\n"
    ),
    "two_versions": model(config=CONFIG + "version_policy { all {} }") | {"2/model.py": CODE},
    "batching": model(config=CONFIG + "max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 8] }"),
    "decoupled": model(config=CONFIG + "model_transaction_policy { decoupled: true }"),
    "warm_up": model(
        config=CONFIG + 'model_warmup { name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 '
        'input_data_file: "sample" } } }'
    )
    | {"warmup/sample": bytes(4)},
    "labels": model(config=CONFIG.replace("output {", 'output { label_filename: "labels.txt"'))
    | {"labels.txt": "a\nb\n"},
    "own_python": model(config=CONFIG + parameter("PYTHON_VERSION", ">=3.8")),
    "compiled_module": model()
    | {f"1/fast{importlib.machinery.EXTENSION_SUFFIXES[0]}": Path(compiled.__file__).read_bytes()},
    "older_dialect": model(
        "import triton_python_backend.api as api\nclass TritonPythonModel:\n    def execute(self, requests, responses):\n"
        "        pass\n"
    ),
    "steps": ensemble("fine", "batch_free"),
    "batch_free": model(),
    "shared_backend": {"config.pbtxt": f'backend: "shared"{IO}', "1/data.txt": ""},
}


def write_good(folder: Path) -> dict[str, Files]:
    """All of them by name."""
    place = environment(folder / "environment")
    config = CONFIG + parameter("EXECUTION_ENV_PATH", place)
    return {**GOOD, "own_environment": model("import psutil\n" + CODE, config)}
