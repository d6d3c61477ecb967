"""ONNX files that tests make, with the library that others make theirs with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT32, INT64, STRING, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
)

Values = Sequence[tuple[str, int, Sequence[int | str]]]


def write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    constants: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
) -> Path:
    """A file with a graph. Names among the sizes of a shape are sizes that vary."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        list(constants),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path


def add_sub(path: Path) -> Path:
    """Sum and difference of rows of four numbers."""
    shape = ["rows", 4]
    return write(
        path,
        [helper.make_node("Add", ["A", "B"], ["SUM"]), helper.make_node("Sub", ["A", "B"], ["DIFFERENCE"])],
        [("A", FLOAT, shape), ("B", FLOAT, shape)],
        [("SUM", FLOAT, shape), ("DIFFERENCE", FLOAT, shape)],
    )


def identity(path: Path, element: int, shape: Sequence[int | str]) -> Path:
    """`X` as `Y`."""
    return write(path, [helper.make_node("Identity", ["X"], ["Y"])], [("X", element, shape)], [("Y", element, shape)])


def total(path: Path) -> Path:
    """The sum of three numbers, as a scalar."""
    node = helper.make_node("ReduceSum", ["X"], ["S"], keepdims=0)
    return write(path, [node], [("X", FLOAT, [3])], [("S", FLOAT, [])])


def gather(path: Path) -> Path:
    """Of ten numbers those at the positions `I`; others than 0 to 9 are an error of ONNX Runtime."""
    table = helper.make_tensor("T", FLOAT, [10], [float(number) for number in range(10)])
    return write(
        path,
        [helper.make_node("Gather", ["T", "I"], ["Y"])],
        [("I", INT64, ["rows", 1])],
        [("Y", FLOAT, ["rows", 1])],
        [table],
    )


def scaled(path: Path) -> Path:
    """`X` times `W`, which is 10 in the file and may be given."""
    initial = helper.make_tensor("W", FLOAT, [1], [10.0])
    return write(
        path,
        [helper.make_node("Mul", ["X", "W"], ["Y"])],
        [("X", FLOAT, [2]), ("W", FLOAT, [1])],
        [("Y", FLOAT, [2])],
        [initial],
    )


def counter(path: Path) -> Path:
    """The sum of all inputs of a sequence: the state is 0 where `START` is 1."""
    nodes = [
        helper.make_node("Sub", ["ONE", "START"], ["KEPT"]),
        helper.make_node("Mul", ["STATE", "KEPT"], ["BEFORE"]),
        helper.make_node("Add", ["BEFORE", "X"], ["NEW_STATE"]),
        helper.make_node("Identity", ["NEW_STATE"], ["Y"]),
    ]
    shape = ["rows", 1]
    return write(
        path,
        nodes,
        [("X", FLOAT, shape), ("START", FLOAT, shape), ("STATE", FLOAT, shape)],
        [("Y", FLOAT, shape), ("NEW_STATE", FLOAT, shape)],
        [helper.make_tensor("ONE", FLOAT, [1], [1.0])],
    )


def with_external_data(path: Path) -> Path:
    """A directory `model.onnx` with the graph and, in a file of its own, the weights."""
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    path.mkdir(parents=True)
    file = write(
        path / "model.onnx",
        [helper.make_node("MatMul", ["X", "W"], ["Y"])],
        [("X", FLOAT, ["rows", 64])],
        [("Y", FLOAT, ["rows", 64])],
        [onnx.numpy_helper.from_array(weights, "W")],
    )
    onnx.save(onnx.load(str(file)), str(file), save_as_external_data=True, location="weights", size_threshold=0)
    return path


def ragged(path: Path) -> Path:
    """`X`, all requests of a batch one behind the other: the sum of each request, and what describes the batch."""
    nodes = [
        helper.make_node("Mul", ["X", "TWO"], ["DOUBLE"]),
        # Differences of running sums at the bounds of requests.
        helper.make_node("CumSum", ["X", "AXIS"], ["RUNNING"]),
        helper.make_node("Concat", ["NOTHING", "RUNNING"], ["PREFIXES"], axis=0),
        helper.make_node("Gather", ["PREFIXES", "BOUNDS"], ["AT_BOUNDS"]),
        helper.make_node("Slice", ["AT_BOUNDS", "ONE", "END"], ["AFTER"]),
        helper.make_node("Slice", ["AT_BOUNDS", "START", "MINUS_ONE"], ["BEFORE"]),
        helper.make_node("Sub", ["AFTER", "BEFORE"], ["SUMS"]),
        helper.make_node("Unsqueeze", ["SUMS", "ONE"], ["SUM"]),
        helper.make_node("Unsqueeze", ["COUNTS", "ONE"], ["COUNT"]),
        helper.make_node("Unsqueeze", ["ENDS", "ONE"], ["ACCUMULATED"]),
        helper.make_node("Unsqueeze", ["SIZES", "ONE"], ["FLAT"]),
        helper.make_node("Identity", ["SHAPES"], ["ITEMS"]),
        helper.make_node("Shape", ["MOST"], ["LONGEST"]),
        helper.make_node("Shape", ["COUNT"], ["ROWS_OF_ONE"]),
        helper.make_node("Expand", ["LONGEST", "ROWS_OF_ONE"], ["LARGEST"]),
    ]
    inputs = [("X", FLOAT, ["elements"]), ("COUNTS", FLOAT, ["rows"]), ("ENDS", INT32, ["rows"])]
    inputs += [("BOUNDS", INT32, ["bounds"]), ("MOST", FLOAT, ["most"]), ("SHAPES", INT32, ["rows", 1])]
    outputs = [("SUM", FLOAT, ["rows", 1]), ("DOUBLE", FLOAT, ["elements"]), ("COUNT", FLOAT, ["rows", 1])]
    outputs += [("ACCUMULATED", INT32, ["rows", 1]), ("LARGEST", INT64, ["rows", 1]), ("ITEMS", INT32, ["rows", 1])]
    constants = [
        helper.make_tensor("TWO", FLOAT, [], [2.0]),
        helper.make_tensor("AXIS", INT64, [], [0]),
        helper.make_tensor("NOTHING", FLOAT, [1], [0.0]),
        helper.make_tensor("START", INT64, [1], [0]),
        helper.make_tensor("ONE", INT64, [1], [1]),
        helper.make_tensor("END", INT64, [1], [2**31 - 1]),
        helper.make_tensor("MINUS_ONE", INT64, [1], [-1]),
    ]
    return write(
        path, nodes, [*inputs, ("SIZES", INT32, ["rows"])], [*outputs, ("FLAT", INT32, ["rows", 1])], constants
    )


def map_of_classes(path: Path) -> Path:
    """Like a classifier of scikit-learn as its converter writes it by default: an output is no tensor."""
    node = helper.make_node("SequenceConstruct", ["X"], ["Y"])
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("X", FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("Y", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.parent.mkdir(parents=True)
    onnx.save(model, str(path))
    return path
