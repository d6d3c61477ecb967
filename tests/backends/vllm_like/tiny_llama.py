"""Writes a tiny Llama with random weights as Hugging Face's folders are, and an adapter for it: for the real vLLM.

Run by an interpreter that has `transformers` and `safetensors`, as any with vLLM has: `python tiny_llama.py MODEL ADAPTER`.
What it says is noise in pieces of words, the same noise for the same prompt.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|bos|>", "<|end|>"]
ALPHABET = [chr(code) for code in range(ord("!"), ord("~") + 1)] + ["\u0120", "\u010a"]
"""As byte-level tokenizers write them: all that can be seen, blank and new line."""
WIDTH, BLOCKS, HEADS, KV_HEADS = 128, 2, 4, 2
RANK = 4


def tokenizer() -> PreTrainedTokenizerFast:
    """Pieces of a few words; whatever is no letter is a token for itself."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=160, initial_alphabet=ALPHABET, special_tokens=SPECIAL)
    pieces.train_from_iterator(["hello the other world, hello other weather, the word is fine"] * 4, trainer)
    bos, eos = SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token=bos, eos_token=eos, chat_template=TEMPLATE)


def write_model(folder: Path) -> None:
    """The model; its vocabulary is the tokenizer's, so that all it says can be read."""
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=2048,
        initializer_range=0.3,  # small weights say the same token for ever
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIAL)] = 0  # hardly ever said: their names are no part of the text
    model.save_pretrained(folder)
    words.save_pretrained(folder)


def write_adapter(folder: Path) -> None:
    """An adapter as of `peft`, whose weights are random."""
    folder.mkdir()
    weights = {}
    for block in range(BLOCKS):
        for name, size in (("q_proj", WIDTH), ("v_proj", WIDTH // HEADS * KV_HEADS)):
            place = f"base_model.model.model.layers.{block}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(RANK, WIDTH)
            weights[f"{place}.lora_B.weight"] = torch.randn(size, RANK)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 16, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["q_proj", "v_proj"]}))


if __name__ == "__main__":
    torch.manual_seed(0)
    write_model(Path(sys.argv[1]))
    write_adapter(Path(sys.argv[2]))
