"""Writes a tiny encoder of images with random weights, for the model of `tiny_gguf.py`.

Run by the interpreter of the engine's environment: `python tiny_mmproj.py FILE`. What a model says depends on the image, and
is the same for the same image.
"""

import sys

import gguf
import numpy as np

WIDTH, INNER, BLOCKS, SIZE, PATCH = 32, 64, 2, 28, 14
MODEL_WIDTH = 64


def tensors():
    """The weights by name, as llama.cpp calls them."""
    random = np.random.default_rng(3)

    def dense(*shape):
        return (random.standard_normal(shape) * 0.1).astype(np.float32)

    def norm(name):
        yield f"{name}.weight", np.ones(WIDTH, np.float32)
        yield f"{name}.bias", dense(WIDTH)

    yield "v.patch_embd.weight", dense(WIDTH, 3, PATCH, PATCH)
    yield "v.class_embd", dense(WIDTH)
    yield "v.position_embd.weight", dense((SIZE // PATCH) ** 2 + 1, WIDTH)
    yield from norm("v.pre_ln")
    yield from norm("v.post_ln")
    for block in range(BLOCKS):
        start = f"v.blk.{block}."
        yield from norm(start + "ln1")
        yield from norm(start + "ln2")
        shapes = {"ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        shapes.update(dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (WIDTH, WIDTH)))
        for name, shape in shapes.items():
            yield f"{start}{name}.weight", dense(*shape)
            yield f"{start}{name}.bias", dense(shape[0])
    for number, width in ((0, WIDTH), (2, MODEL_WIDTH)):
        yield f"mm.{number}.weight", dense(MODEL_WIDTH, width)
        yield f"mm.{number}.bias", dense(MODEL_WIDTH)


def write(path):
    """Write the encoder to *path*."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", "mlp")
    vision = {
        "image_size": SIZE, "patch_size": PATCH, "embedding_length": WIDTH, "feed_forward_length": INNER,
        "block_count": BLOCKS, "attention.head_count": 1, "projection_dim": MODEL_WIDTH,
    }  # fmt: skip
    for name, value in vision.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    for name, array in tensors():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
