"""Writes models that say given texts: a real engine runs them, and its parsers get exactly the pieces of a test.

Run by the interpreter of the engine's environment, which has `gguf`: `python scripted_gguf.py < MODELS`, where MODELS is a
JSON list of objects with these members:

- `path`: Where the model is written.
- `template`: Its chat template.
- `scripts`: Texts, each a list of pieces: strings, or lists of bytes. Each piece is one token.
- `context`: The number of tokens of its context.
- `has_words`: Whether frequent words are tokens, so that long prompts of English have a fifth of the tokens.

Such a model looks at the last token only: each token has a next one. Script 0 follows a line break, with which the generation
prompt of most templates ends; script N follows the token `<|sayN|>`, which a template writes to choose a script. The token
`<|im_end|>` follows the last piece, and every token that is in no script.
"""

import itertools
import json
import re
import sys
from collections import Counter
from pydoc_data.topics import topics

import gguf
import numpy as np

HEAD = 32
GAIN = 60.0
"""Logit of the next token; all others have 0, so that it is chosen at any temperature."""
WORDS = 1500
SPECIAL = ("<|begin|>", "<|im_start|>", "<|im_end|>")
"""Only the last of these ends a text, also for a grammar: llama.cpp would take `<|endoftext|>` for such a token, too."""


def byte_characters():
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    names.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return [names[byte] for byte in range(256)]


CHARACTERS = byte_characters()


def name_of(piece):
    """The text of a token as the vocabulary has it."""
    return "".join(CHARACTERS[byte] for byte in piece)


def is_utf8(piece):
    """Whether bytes are whole characters."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def frequent_words():
    """Tokens for frequent words of English, and the merges that make them, letter by letter."""
    counts = Counter(re.findall(r" ?[A-Za-z]+", " ".join(topics.values())))
    tokens, merges = {}, []
    for word, _ in counts.most_common(WORDS):
        letters = [CHARACTERS[byte] for byte in word.encode()]
        for end in range(1, len(letters)):
            token = "".join(letters[: end + 1])
            if token not in tokens:
                tokens[token] = None
                merges.append("".join(letters[:end]) + " " + letters[end])
    return list(tokens), merges


def distinct(scripts, known):
    """The scripts; a piece that the vocabulary has already is joined with its neighbour, since a token has one next."""
    taken = set(known)
    made = []
    for script in scripts:
        pending = [bytes(piece) if isinstance(piece, list) else piece.encode() for piece in script]
        pieces = []
        while pending:
            piece = pending.pop(0)
            while name_of(piece) in taken and pending:
                piece += pending.pop(0)
            while name_of(piece) in taken and pieces:
                before = pieces.pop()
                taken.discard(name_of(before))
                piece = before + piece
            if name_of(piece) in taken:
                raise ValueError(f"the script {script!r} is the text of another token; make it longer")
            taken.add(name_of(piece))
            pieces.append(piece)
        made.append(pieces)
    return made


def write(path, template, scripts, context=4096, has_words=False):
    """Write one model."""
    words, merges = frequent_words() if has_words else ([], ["q q"])
    tokens = [*CHARACTERS, *words]
    scripts = distinct(scripts, tokens)
    special = len(tokens)
    tokens += [*SPECIAL, *(f"<|say{number}|>" for number in range(len(scripts)))]
    first = len(tokens)
    pieces = [piece for script in scripts for piece in script]
    # A grammar permits the tokens that the tokenizer makes of a text that it demands. It finds user-defined ones whole.
    is_text = [is_utf8(piece) for piece in pieces]
    tokens += [piece.decode() if whole else name_of(piece) for piece, whole in zip(pieces, is_text, strict=True)]
    end = special + SPECIAL.index("<|im_end|>")
    following = {}
    place = first
    for number, script in enumerate(scripts):
        chain = [special + len(SPECIAL) + number, *range(place, place + len(script)), end]
        following.update(itertools.pairwise(chain))
        place += len(script)
    following[tokens.index(CHARACTERS[ord("\n")])] = following[special + len(SPECIAL)]

    states = {token: 1 + number for number, token in enumerate(following)}  # state 0 is that of all other tokens
    width = -(-(len(states) + 1) // HEAD) * HEAD
    embedding = np.zeros((len(tokens), width), dtype=np.float32)
    output = np.zeros((len(tokens), width), dtype=np.float32)
    for token in range(len(tokens)):
        embedding[token, states.get(token, 0)] = 1
    output[end, 0] = GAIN
    for token, following_token in following.items():
        output[following_token, states[token]] = GAIN
    # The norm before the output multiplies the one element that is not zero by the root of the width.
    output /= np.sqrt(width)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HEAD)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    kinds = [gguf.TokenType.NORMAL] * special + [gguf.TokenType.CONTROL] * (first - special)
    kinds += [gguf.TokenType.USER_DEFINED if whole else gguf.TokenType.NORMAL for whole in is_text]
    writer.add_token_types(kinds)
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(special)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    for name, token in (("pre", special), ("suf", special + 1), ("mid", special + len(SPECIAL))):
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)  # script 0 is between a prefix and a suffix
    writer.add_chat_template(template)
    zeros = {
        "attn_q": (HEAD, width), "attn_k": (HEAD, width), "attn_v": (HEAD, width), "attn_output": (width, HEAD),
        "ffn_gate": (HEAD, width), "ffn_up": (HEAD, width), "ffn_down": (width, HEAD),
    }  # fmt: skip
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    writer.add_tensor("output.weight", output)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, dtype=np.float32))
    for name, shape in zeros.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for model in json.load(sys.stdin):
        write(**model)
