"""Compiles a package ahead of time, which takes a C++ compiler and a minute; run by the interpreter that serves it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


class AddSub(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + y, "difference": x - y}


version = Path(sys.argv[1], "compiled", "1")
version.mkdir(parents=True)
batch = torch.export.Dim("batch")
program = torch.export.export(
    AddSub(), (torch.ones(2, 4), torch.ones(2, 4)), dynamic_shapes={"x": {0: batch}, "y": {0: batch}}
)
torch._inductor.aoti_compile_and_package(program, package_path=str(version / "model.pt2"))
