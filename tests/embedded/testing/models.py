"""Models written by tests."""

import textwrap

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\n"
CONFIG = """
max_batch_size: {batch}
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}, {{ name: "MORE" data_type: TYPE_FP32 dims: [ -1 ] }} ]
{more}
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def write_model(folder, name, *methods, batch=0, more="", config=None, head=""):
    """A model directory whose class has *methods*; return its path."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    body = "\n".join(textwrap.indent(textwrap.dedent(method).strip("\n") + "\n", "    ") for method in methods)
    (version / "model.py").write_text(f"{HEAD}{textwrap.dedent(head)}class TritonPythonModel:\n{body}")
    (folder / name / "config.pbtxt").write_text(CONFIG.format(batch=batch, more=more) if config is None else config)
    return folder / name
