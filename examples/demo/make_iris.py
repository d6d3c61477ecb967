# /// script
# requires-python = ">=3.10"
# dependencies = ["onnx", "scikit-learn"]
# ///
"""Writes `repository/iris/1/model.onnx`: `uv run examples/demo/make_iris.py`. The file is part of the demo.

A logistic regression of scikit-learn on its data about irises, as four operators of ONNX. It names the species itself,
so that a client needs no list of labels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression


def main() -> None:
    """Train and write."""
    data = load_iris()
    model = LogisticRegression(max_iter=1000).fit(data.data, data.target)
    constants = {
        "weights": model.coef_.T.astype(np.float32),
        "biases": model.intercept_.astype(np.float32),
        "names": np.array([name.encode() for name in data.target_names], object),
    }
    nodes = [
        helper.make_node("Gemm", ["CENTIMETRES", "weights", "biases"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["CHANCES"], axis=1),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1),  # of shape [rows, 1]
        helper.make_node("Gather", ["names", "best"], ["SPECIES"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "iris",
        [helper.make_tensor_value_info("CENTIMETRES", TensorProto.FLOAT, ["rows", 4])],
        [
            helper.make_tensor_value_info("SPECIES", TensorProto.STRING, ["rows", 1]),
            helper.make_tensor_value_info("CHANCES", TensorProto.FLOAT, ["rows", 3]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    path = Path(__file__).parent / "repository" / "iris" / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)


if __name__ == "__main__":
    main()
