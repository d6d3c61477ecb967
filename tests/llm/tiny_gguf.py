"""Writes a tiny llama model with random weights: a real engine runs it at thousands of tokens a second.

Run by the interpreter of the engine's environment, which has `gguf`: `python tiny_gguf.py MODEL ADAPTER`. What it says is
noise, the same noise for the same prompt; some of its pieces are no whole characters, as in real models.
"""

import sys

import gguf
import numpy as np

CONTEXT = 4096
WIDTH = 64
BLOCKS = 2
HEADS = 4
KV_HEADS = 2
INNER = 128
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<|bos|>", "<|end|>", "<|unk|>")


def byte_characters():
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    names.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return [names[byte] for byte in range(256)]


def vocabulary():
    """Tokens and the merges that make some of them."""
    tokens = byte_characters()
    merges = []
    for pair in ("t h", "th e", "i n", "a n", "e r", "o u", "Ġ a", "Ġ the", "l l", "o r", "Ġ s", "c h", "h e", "a t"):
        merges.append(pair)
        tokens.append(pair.replace(" ", ""))
    return [*tokens, *SPECIAL], merges


def write(path, seed=1):
    """Write the model to *path*."""
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    kinds = [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL)) + [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(len(tokens) - 3)
    writer.add_eos_token_id(len(tokens) - 2)
    writer.add_unk_token_id(len(tokens) - 1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    for name, array in tensors(len(tokens), seed):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(size, seed):
    """The weights by name, as llama.cpp calls them."""
    random = np.random.default_rng(seed)

    def dense(rows, columns):
        return (random.standard_normal((rows, columns)) * 1.5 / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(WIDTH, dtype=np.float32)
    values = WIDTH * KV_HEADS // HEADS
    yield "token_embd.weight", dense(size, WIDTH)
    yield "output_norm.weight", ones
    yield "output.weight", dense(size, WIDTH)
    for block in range(BLOCKS):
        start = f"blk.{block}."
        yield start + "attn_norm.weight", ones
        yield start + "ffn_norm.weight", ones
        yield start + "attn_q.weight", dense(WIDTH, WIDTH)
        yield start + "attn_k.weight", dense(values, WIDTH)
        yield start + "attn_v.weight", dense(values, WIDTH)
        yield start + "attn_output.weight", dense(WIDTH, WIDTH)
        yield start + "ffn_gate.weight", dense(INNER, WIDTH)
        yield start + "ffn_up.weight", dense(INNER, WIDTH)
        yield start + "ffn_down.weight", dense(WIDTH, INNER)


def write_adapter(path, seed=2, rank=2):
    """Write an adapter that changes what the model says."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for block in range(BLOCKS):
        name = f"blk.{block}.ffn_down.weight"
        writer.add_tensor(f"{name}.lora_a", random.standard_normal((rank, INNER)).astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", random.standard_normal((WIDTH, rank)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
    write_adapter(sys.argv[2])
