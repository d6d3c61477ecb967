"""Writes the two models: `write.py DENSE ENCODER`."""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
nodes, weights = [], []


def weight(*shape):
    name = f"w{len(weights)}"
    weights.append(numpy_helper.from_array((random.standard_normal(shape) * 0.05).astype("f"), name))
    return name


def node(kind, *inputs, **attributes):
    name = f"n{len(nodes)}"
    nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
    return name


def save(path, last, shape):
    nodes.append(helper.make_node("Identity", [last], ["Y"]))
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", *shape]) for name in ("X", "Y")]
    graph = helper.make_graph(nodes, "graph", tensors[:1], tensors[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, path)
    nodes.clear()
    weights.clear()


last = node("MatMul", "X", weight(256, 1024))
for _ in range(14):
    last = node("Relu", node("MatMul", last, weight(1024, 1024)))
save(sys.argv[1], node("MatMul", last, weight(1024, 256)), [256])

WIDTH, TOKENS, HEADS = 128, 16, 4
last = "X"
for _ in range(4):
    shape = numpy_helper.from_array(np.array([0, 0, HEADS, WIDTH // HEADS]), f"s{len(nodes)}")
    back = numpy_helper.from_array(np.array([0, 0, WIDTH]), f"b{len(nodes)}")
    scale = numpy_helper.from_array(np.array((WIDTH // HEADS) ** -0.5, "f"), f"c{len(nodes)}")
    weights += [shape, back, scale]
    query, key, value = (
        node("Transpose", node("Reshape", node("MatMul", last, weight(WIDTH, WIDTH)), shape.name), perm=order)
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    attention = node("Softmax", node("Mul", node("MatMul", query, key), scale.name), axis=-1)
    mixed = node("Reshape", node("Transpose", node("MatMul", attention, value), perm=[0, 2, 1, 3]), back.name)
    ones, zeros = (numpy_helper.from_array(np.full(WIDTH, fill, "f"), f"{fill}-{len(nodes)}") for fill in (1, 0))
    weights += [ones, zeros]
    last = node("Add", last, node("MatMul", mixed, weight(WIDTH, WIDTH)))
    last = node("LayerNormalization", last, ones.name, zeros.name)
    wide = node("Relu", node("MatMul", last, weight(WIDTH, 4 * WIDTH)))
    last = node("Add", last, node("MatMul", wide, weight(4 * WIDTH, WIDTH)))
    last = node("LayerNormalization", last, ones.name, zeros.name)
save(sys.argv[2], last, [TOKENS, WIDTH])
