"""Export a small text encoder with random weights, and what it says about the sentences of sentences.txt.

Needs `pip install onnx`. Writes `models/encoder/1/model.onnx` and the files of the model `nearest`. A real model would
come from an exporter, such as `torch.onnx.export`; only its file would differ.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE / "models" / "tokenizer" / "1"))

from words import TOKENS, pad  # noqa: E402 - the tokenizer's own code

WIDTH = 64


def encoder():
    """Embeddings, one layer of attention, the mean over the words of a text, and length 1."""
    random = np.random.default_rng(seed=7)

    def weights(name, *shape):
        return numpy_helper.from_array((random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32), name)

    constants = [
        weights("TABLE", TOKENS, WIDTH),
        weights("QUERY", WIDTH, WIDTH),
        weights("KEY", WIDTH, WIDTH),
        weights("VALUE", WIDTH, WIDTH),
        numpy_helper.from_array(np.float32(1 / np.sqrt(WIDTH)), "SCALE"),
        numpy_helper.from_array(np.float32(-1e9), "HIDDEN"),
        numpy_helper.from_array(np.float32(1), "ONE"),
        numpy_helper.from_array(np.array([1], np.int64), "AXIS_1"),
        numpy_helper.from_array(np.array([2], np.int64), "AXIS_2"),
    ]
    nodes = [
        helper.make_node("Gather", ["TABLE", "TOKENS"], ["words"]),
        helper.make_node("MatMul", ["words", "QUERY"], ["queries"]),
        helper.make_node("MatMul", ["words", "KEY"], ["keys"]),
        helper.make_node("MatMul", ["words", "VALUE"], ["values"]),
        helper.make_node("Transpose", ["keys"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["queries", "turned"], ["products"]),
        helper.make_node("Mul", ["products", "SCALE"], ["scores"]),
        # Words of padding are hidden: -1e9 where the mask is 0.
        helper.make_node("Sub", ["ONE", "MASK"], ["padding"]),
        helper.make_node("Mul", ["padding", "HIDDEN"], ["far"]),
        helper.make_node("Unsqueeze", ["far", "AXIS_1"], ["bias"]),
        helper.make_node("Add", ["scores", "bias"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["attention"], axis=-1),
        helper.make_node("MatMul", ["attention", "values"], ["mixed"]),
        helper.make_node("Add", ["words", "mixed"], ["states"]),
        helper.make_node("Unsqueeze", ["MASK", "AXIS_2"], ["column"]),
        helper.make_node("Mul", ["states", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "AXIS_1"], ["total"], keepdims=0),
        helper.make_node("LpNormalization", ["total"], ["EMBEDDING"], axis=-1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info("TOKENS", TensorProto.INT64, ["batch", "words"]),
            helper.make_tensor_value_info("MASK", TensorProto.FLOAT, ["batch", "words"]),
        ],
        [helper.make_tensor_value_info("EMBEDDING", TensorProto.FLOAT, ["batch", WIDTH])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def main():
    model = encoder()
    file = HERE / "models" / "encoder" / "1" / "model.onnx"
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(file))

    sentences = (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines()
    tokens, mask = pad(sentences)
    (embeddings,) = ReferenceEvaluator(model).run(None, {"TOKENS": tokens, "MASK": mask})
    nearest = HERE / "models" / "nearest" / "1"
    np.save(nearest / "embeddings.npy", embeddings)
    shutil.copyfile(HERE / "sentences.txt", nearest / "sentences.txt")
    print(f"wrote {file.relative_to(HERE)} ({file.stat().st_size // 1024} KiB) and {len(sentences)} embeddings")


if __name__ == "__main__":
    main()
