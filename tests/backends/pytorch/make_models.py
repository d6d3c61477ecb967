"""Writes models of all kinds with the real PyTorch; run by the interpreter that will serve them."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import torch
from torch import nn

folder = Path(sys.argv[1])
torch.manual_seed(0)


def place(name: str, file: str = "model.pt") -> str:
    version = folder / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    return str(version / file)


class AddSub(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        return x + y, x - y


class Louder(nn.Module):
    def forward(self, texts: list[str]) -> list[str]:
        return [text + "!" for text in texts]


class Lengths(nn.Module):
    def forward(self, texts: list[str]):
        return torch.tensor([len(text) for text in texts]), texts


class Named(nn.Module):
    def forward(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"product": given["a"] * given["b"], "sum": given["a"] + given["b"]}


class Lookup(nn.Module):
    """Of ten numbers those at the positions; others are an error of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 1)
        self.table.weight.data = torch.arange(10.0).reshape(10, 1)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return self.table(positions[:, 0])


class Counter(nn.Module):
    """The sum of all inputs of a sequence."""

    def forward(self, x: torch.Tensor, start: torch.Tensor, state: torch.Tensor):
        total = x + torch.where(start > 0, 0.0, state)
        return total, total


class Segments(nn.Module):
    """The sum of each request's numbers, which are one behind the other, and twice each number."""

    def forward(self, x: torch.Tensor, ends: torch.Tensor):
        sums = torch.cumsum(x, 0)[ends.long() - 1]
        return torch.diff(sums, prepend=torch.zeros(1)).reshape(-1, 1), x * 2


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, options: dict[str, torch.Tensor]):
        hidden = self.layer(x)
        return {"hidden": hidden, "pair": (hidden + options["bias"], x.sum(1, keepdim=True))}


def script(name: str, module: nn.Module) -> None:
    torch.jit.script(module).save(place(name))


for name in ("add_sub", "by_index", "by_order", "tuned", "without_outputs", "wrong_outputs", "kept"):
    script(name, AddSub())
torch.jit.trace(AddSub(), (torch.ones(1, 4), torch.ones(1, 4))).save(place("traced", "other.pt"))
script("louder", Louder())
script("lengths", Lengths())
script("named", Named())
script("lookup", Lookup())
script("counter", Counter())
script("segments", Segments())
torch.export.save(
    torch.export.export(
        Segments(),
        (torch.ones(6), torch.ones(3, dtype=torch.int32)),
        dynamic_shapes={"x": {0: torch.export.Dim("numbers")}, "ends": {0: torch.export.Dim("requests")}},
    ),
    place("segments_exported", "model.pt2"),
)

batch = torch.export.Dim("batch")
example = (torch.ones(2, 4), {"bias": torch.ones(2, 3)})
exported = torch.export.export(
    Encoder().eval(), example, dynamic_shapes={"x": {0: batch}, "options": {"bias": {0: batch}}}
)
torch.export.save(exported, place("exported", "model.pt2"))
torch.export.save(torch.export.export(AddSub(), (torch.ones(2, 4), torch.ones(2, 4))), place("fixed", "model.pt2"))

weights = nn.Linear(4, 2)
weights.weight.data = torch.arange(8.0).reshape(2, 4)
weights.bias.data = torch.tensor([1.0, -1.0])
torch.save({"layer.weight": weights.weight, "layer.bias": weights.bias}, place("module"))
torch.save({"layer.weight": weights.weight}, place("other_weights"))
torch.save(weights.state_dict(), place("weights_alone"))

script("newer", AddSub())
with zipfile.ZipFile(place("newer")) as archive:
    parts = {entry: archive.read(entry) for entry in archive.namelist()}
with zipfile.ZipFile(place("newer"), "w", zipfile.ZIP_STORED) as archive:
    for entry, data in parts.items():
        archive.writestr(entry, b"99\n" if entry.rpartition("/")[2] == "version" else data)

for name in ("no_inputs", "wrong_count", "wrong_names", "wrong_flag", "two_dimensions"):
    script(name, Louder() if name == "two_dimensions" else AddSub())
for name in ("unknown_input", "wrong_type", "wrong_shape", "wrong_inputs"):
    torch.export.save(torch.export.export(AddSub(), (torch.ones(2, 4), torch.ones(2, 4))), place(name, "model.pt2"))
