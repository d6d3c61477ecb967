"""Texts as numbers of words; `export.py` uses it as well."""

import re
import zlib

import numpy as np

TOKENS = 4096
"""Number of different tokens; 0 is padding."""


def pad(texts):
    """The tokens of texts, padded to the longest one, and a mask that is 1 where a word is."""
    rows = [[1 + zlib.crc32(word.encode()) % (TOKENS - 1) for word in _words(text)] for text in texts]
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros(tokens.shape, np.float32)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return tokens, mask


def _words(text):
    """The words of a text that have more than three letters; at least one word, if only an empty one."""
    return [word for word in re.findall(r"\w+", text.lower()) if len(word) > 3] or [""]
