"""What a compiled package says about its inputs.

The call specification has names alone. The source of the machine code, which the compiler puts beside it, has a check
of each input's type and sizes; these are read here. They do not belong to the format: a package of another version may
not have them, and then nothing is known.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Dict, Optional, Tuple

import torch
from saved_models.interface import ModelTensor

from naiad_pytorch.tensors import DATA_TYPES

_CHECK = re.compile(r"static void check_input_(\d+)\(.*?\n\}", re.DOTALL)
_TYPE = re.compile(r"_expected_dtype = aoti_torch_dtype_(\w+)\(\)")
_SIZE = re.compile(r"if \((-?\d+) != \w+_size\[(\d+)\]\)")
_NAME = re.compile(r"inputs_info_\[(\d+)\]\.name = \"(\w+)\"")
_RANK = "assert_size_stride({name}, {{"
_DYNAMIC = -1


def describe_inputs(path: Path) -> Optional[Tuple[ModelTensor, ...]]:
    """Type and shape of each input, in the order of the call; None if the package does not say all of them."""
    text = _source(path)
    names = {int(number): name for number, name in _NAME.findall(text)}
    checks = {int(match[1]): match[0] for match in _CHECK.finditer(text)}
    found = []
    for number in range(len(names)):
        tensor = _described(names, checks, number, text)
        if tensor is None:
            return None
        found.append(tensor)
    return tuple(found) if found else None


def _source(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        name = next((each for each in archive.namelist() if each.endswith("wrapper.cpp")), None)
        return "" if name is None else archive.read(name).decode("utf-8", "replace")


def _described(names: Dict[int, str], checks: Dict[int, str], number: int, text: str) -> Optional[ModelTensor]:
    name, check = names.get(number, ""), checks.get(number, "")
    named = _TYPE.search(check)
    rank = _rank(name, text)
    if named is None or rank is None:
        return None
    dtype = getattr(torch, named[1], None)
    shape = [_DYNAMIC] * rank
    for size, position in _SIZE.findall(check):
        if int(position) >= rank:
            return None
        shape[int(position)] = int(size)
    return ModelTensor(name, DATA_TYPES.get(dtype, "") if dtype else "", tuple(shape), described=named[1])


def _rank(name: str, text: str) -> Optional[int]:
    """The number of dimensions, by the sizes that the code compares: `assert_size_stride(x, {s17, 4L}, ...)`."""
    start = text.find(_RANK.format(name=name))
    if start < 0:
        return None
    sizes = text[start + len(_RANK.format(name=name)) :].partition("}")[0]
    return len([size for size in sizes.split(",") if size.strip()])
