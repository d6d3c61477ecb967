"""Writes the models of two jobs: `fit.py FILE FEATURES`.

A random forest with the scikit-learn of its environment, in the format that the suffix names, or an ONNX file.
"""

import sys
from itertools import pairwise
from pathlib import Path

CLASSES = 4
HIDDEN = 256


def forest(features: int) -> object:
    """A forest whose trees take some milliseconds together, for one row or for thirty."""
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    rows, classes = make_classification(2000, features, n_informative=12, n_classes=CLASSES, random_state=0)
    return RandomForestClassifier(100, random_state=0).fit(rows, classes)


def write_network(path: Path, features: int) -> None:
    """Three layers with weights by chance, which take tens of microseconds for one row."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    sizes = [features, HIDDEN, HIDDEN, CLASSES]
    nodes, weights, last = [], [], "X"
    for index, shape in enumerate(pairwise(sizes)):
        values = random.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"weights{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"weights{index}"], [f"sums{index}"]))
        is_output = index == len(sizes) - 2
        last = "probabilities" if is_output else f"layer{index}"
        nodes.append(helper.make_node("Softmax" if is_output else "Relu", [f"sums{index}"], [last]))
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["rows", features])]
    outputs = [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", CLASSES])]
    graph = helper.make_graph(nodes, "network", inputs, outputs, weights)
    # The oldest versions that say all of it: each server's onnxruntime reads them.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


if __name__ == "__main__":
    path, width = Path(sys.argv[1]), int(sys.argv[2])
    if path.suffix == ".onnx":
        write_network(path, width)
    elif path.suffix == ".skops":
        import skops.io

        skops.io.dump(forest(width), path)
    else:
        import joblib

        joblib.dump(forest(width), path)
