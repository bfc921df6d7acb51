"""Compile every kernel for the GPUs it is meant for, on a machine that has none: JSON, how much each spills.

Run by `test_compiled.py` in a process of its own, as kernels that are interpreted cannot be compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from floc.selection.gpu import clusters, few, greedy, similarity, team

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
NOT_ALIGNED = {"members", "enough", "count", "dim", "bits", "ring_bits"}  # any number; all else is a multiple of 16

ROWS = dict(values="*bf16", scale="*fp32", power="*fp32")
PICKED = dict(picks="*i32", gains="*i32", made="*i32", steps="*i32")
MATRIX = dict(matrix="*i16", table="*i64")
CHOOSING = {**MATRIX, **PICKED, "weights": "*i64", "now": "*i32"}
WEIGHTED = {**CHOOSING, "gains": "*i64", "now": "*i64"}
TOGETHER = dict(
    best_words="*i64",
    members="i32",
    candidates_each="i32",
    bits="i32",
    histogram="*i32",
    enough="i32",
)
FEW = dict(TOGETHER, risen="*i64")
TEAM = dict(
    TOGETHER,
    risen_words="*i32",
    tails="*i32",
    rings="*i64",
    nears="*i64",
    tokens_each="i32",
    ring_bits="i32",
)
FILL = dict(
    {
        f"{side}_{name}": kind
        for side in "ab"
        for name, kind in (("scale", "*fp32"), ("power", "*fp32"), ("seen", "*i32"))
    },
    **MATRIX,
    tiles="*i32",
    dim="i32",
    detail="fp32",
    a_box=None,
    b_box=None,
    TILE=128,
)
HALF = dict(a="*bf16", b="*bf16", STEP=64, PRECISION="tf32", EVEN=True)
BOX = "tensordesc<bf16[128,64]>"


def _chooser(kernel: Any, shape: dict[str, int], types: dict[str, str], **constants: bool) -> tuple[Any, ...]:
    """A kernel of `greedy`, as it is launched."""
    flags = dict(WEIGHTED=False, BOUNDED=False, FIRSTS=False) | constants
    return kernel, {**types, **flags, **shape}, shape["num_warps"], 3


# kernel, its arguments (a string is a type, all else a constant), warps, stages
EVERYWHERE = {
    "measure": (similarity._measure, dict(ROWS, seen="*i32", dim="i32", BLOCK=4096), 4, 3),
    "fill": (similarity._fill, dict(FILL, **HALF, SYMMETRIC=True, DETAIL=1, SCALED=False, BOXED=False), 8, 4),
    "fill, float32": (
        similarity._fill,
        dict(FILL, a="*fp32", b="*fp32", STEP=32, PRECISION="tf32x3", EVEN=False)
        | dict(SYMMETRIC=False, DETAIL=1, SCALED=False, BOXED=False),
        8,
        4,
    ),
    "evaluate": (
        greedy._evaluate,
        dict(CHOOSING, pieces="*i32", AFTER=True, WEIGHTED=False, ROWS=16, BLOCK=512),
        4,
        3,
    ),
    "first": (greedy._first, dict(now="*i32", picks="*i32", gains="*i32", table="*i64", BLOCK=4096), 8, 3),
    "few: five": _chooser(few._few, few.shape_of(1920, 1920, 5), CHOOSING | FEW, BOUNDED=True, FIRSTS=True),
    "few: one": _chooser(few._few, few.shape_of(1920, 1920, 1), CHOOSING | FEW),
    "few: one, 4,000 tokens": _chooser(few._few, few.shape_of(4000, 4000, 1), CHOOSING | FEW),
    "team: sixteen": _chooser(team._team, team.shape_of(4320, 4320, 16), CHOOSING | TEAM, BOUNDED=True),
    "team: whole video": _chooser(team._team, team.shape_of(47_040, 47_040, 128), CHOOSING | TEAM),
    "team: second pass": _chooser(team._team, team.shape_of(11_760, 11_760, 128), WEIGHTED | TEAM, WEIGHTED=True),
    "fill_up": (
        greedy._fill_up,
        dict(PICKED, marks="*i8", later="*i32", table="*i64", ORDERED=True, BLOCK=1024),
        4,
        3,
    ),
    "represent": (
        clusters._represent,
        dict(MATRIX, picks="*i32", counts="*i32", by="*i32", pieces="*i32", BLOCK=64, TOGETHER=16),
        1,
        3,
    ),
    "sum": (
        clusters._sum,
        dict(ROWS, members="*i64", starts="*i64", out="*fp16", dim="i32", BLOCK=1024, TOGETHER=4),
        4,
        3,
    ),
    "gather": (
        clusters._gather,
        dict(ROWS, places="*i64", out="*fp16", out_scale="*fp32", dim="i32", BLOCK=4096),
        4,
        3,
    ),
    "worst": (
        clusters._worst,
        dict(ROWS, picks="*i32", made="*i32", by="*i32", keys="*i64", table="*i64", sets="*i32")
        | dict(enough="i32", count="i32", dim="i32", SETS=32, BLOCK=4096),
        4,
        3,
    ),
}
MORE_ON_HOPPER = {
    "fill, scaled": (similarity._fill, dict(FILL, **HALF, SYMMETRIC=False, DETAIL=2, SCALED=True, BOXED=False), 8, 4),
    "fill, boxed": (
        similarity._fill,
        dict(FILL, **HALF, SYMMETRIC=True, DETAIL=1, SCALED=False, BOXED=True) | dict(a_box=BOX, b_box=BOX),
        8,
        4,
    ),
}


def spilled_bytes(kernel: triton.JITFunction, arguments: dict[str, Any], warps: int, stages: int, target: int) -> int:
    names = kernel.arg_names
    given = {name: arguments[name] for name in names}
    types = {
        name: kind if isinstance(kind, str) and not name.isupper() else "constexpr" for name, kind in given.items()
    }
    constants = {(names.index(name),): given[name] for name, kind in types.items() if kind == "constexpr"}
    aligned = [name for name, kind in types.items() if kind[0] == "*" or (kind == "i32" and name not in NOT_ALIGNED)]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, types, constants, attributes)
    made = triton.compile(
        source, target=GPUTarget("cuda", target, 32), options=dict(num_warps=warps, num_stages=stages)
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", said)[1])


if __name__ == "__main__":
    print(
        json.dumps(
            {
                f"{name} on {target}": spilled_bytes(*arguments, target)
                for target, kernels in ((80, EVERYWHERE), (90, EVERYWHERE | MORE_ON_HOPPER))
                for name, arguments in kernels.items()
            }
        )
    )
