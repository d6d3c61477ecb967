"""Writes a tiny llama model with random weights: a real engine runs it at thousands of tokens a second.

Run by the interpreter of the engine's environment, which has `gguf`: `python tiny_gguf.py MODEL ADAPTER`, or
`python tiny_gguf.py MODEL` for the least model there can be, of which no adapter is made. What they say is noise, the same
noise for the same prompt. Some pieces of the first are no whole characters, as in real models. Those of the least one are
letters, digits and signs: each token is a part of the answer for itself.
"""

import sys
from typing import NamedTuple

import gguf
import numpy as np

CONTEXT = 4096


class Size(NamedTuple):
    """How much of everything a model has."""

    width: int
    blocks: int
    heads: int
    kv_heads: int
    inner: int
    says_whole_characters: bool = False


TINY = Size(width=64, blocks=2, heads=4, kv_heads=2, inner=128)
# What a token costs is then what llama.cpp does about it, be the model as small as it may: each head of each block would
# go through all tokens before.
LEAST = Size(width=32, blocks=1, heads=1, kv_heads=1, inner=32, says_whole_characters=True)
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


def says(token):
    """Whether a token is nothing but printable characters of ASCII; the space has a stand-in."""
    return token not in SPECIAL and all(character == "Ġ" or "!" <= character <= "~" for character in token)


def write(path, size=TINY, seed=1):
    """Write the model to *path*."""
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(size.width)
    writer.add_block_count(size.blocks)
    writer.add_feed_forward_length(size.inner)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_rope_dimension_count(size.width // size.heads)
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
    for name, array in tensors(size, tokens, seed):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(size, tokens, seed):
    """The weights by name, as llama.cpp calls them."""
    random = np.random.default_rng(seed)

    def dense(rows, columns):
        return (random.standard_normal((rows, columns)) * 1.5 / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(size.width, dtype=np.float32)
    values = size.width * size.kv_heads // size.heads
    yield "token_embd.weight", dense(len(tokens), size.width)
    yield "output_norm.weight", ones
    output = dense(len(tokens), size.width)
    if size.says_whole_characters:
        output[[not says(token) for token in tokens]] = 0  # some other one is always likelier
    yield "output.weight", output
    for block in range(size.blocks):
        start = f"blk.{block}."
        yield start + "attn_norm.weight", ones
        yield start + "ffn_norm.weight", ones
        yield start + "attn_q.weight", dense(size.width, size.width)
        yield start + "attn_k.weight", dense(values, size.width)
        yield start + "attn_v.weight", dense(values, size.width)
        yield start + "attn_output.weight", dense(size.width, size.width)
        yield start + "ffn_gate.weight", dense(size.inner, size.width)
        yield start + "ffn_up.weight", dense(size.inner, size.width)
        yield start + "ffn_down.weight", dense(size.width, size.inner)


def write_adapter(path, seed=2, rank=2):
    """Write an adapter that changes what the tiny model says."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for block in range(TINY.blocks):
        name = f"blk.{block}.ffn_down.weight"
        writer.add_tensor(f"{name}.lora_a", random.standard_normal((rank, TINY.inner)).astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", random.standard_normal((TINY.width, rank)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    model, *adapter = sys.argv[1:]
    write(model, TINY if adapter else LEAST)
    for path in adapter:
        write_adapter(path)
