"""Compile every kernel for a target GPU, 80 or 90, on a machine without one, and print the bytes each spills as JSON.

`test_compiled.py` runs this in a separate process, because interpreted kernels cannot be compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from floc.selection.engine import Band
from floc.selection.gpu import (
    band_rounds,
    band_similarity,
    clusters,
    greedy,
    greedy_few_programs,
    greedy_many_programs,
    similarity,
)

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
# all others are multiples of 16
UNALIGNED = {"programs", "stop_count", "count", "dim", "bits", "ring_bits"} | {"n", "frames", "cells", "horizon"}
UNALIGNED |= {"width", "owned", "halo", "depth", "tiles_each"}

ROWS = dict(values="*bf16", scale="*fp32", power="*fp32")
PICKS = dict(picks="*i32", gains="*i32", counts="*i32", steps="*i32")
MATRIX = dict(matrix="*i16", table="*i64")
GREEDY = {**MATRIX, **PICKS, "weights": "*i64", "current_gains": "*i32"}
WEIGHTED_GREEDY = {**GREEDY, "gains": "*i64", "current_gains": "*i64"}
EXCHANGE = dict(
    best_words="*i64",
    programs="i32",
    candidates_each="i32",
    bits="i32",
    histogram="*i32",
    stop_count="i32",
)
FEW = dict(EXCHANGE, raised="*i64")
MANY = dict(
    EXCHANGE,
    summary_words="*i32",
    tails="*i32",
    rings="*i64",
    buffers="*i64",
    tokens_each="i32",
    ring_bits="i32",
)
FILL = dict(
    {
        f"{side}_{name}": kind
        for side in "ab"
        for name, kind in (("scale", "*fp32"), ("power", "*fp32"), ("flags", "*i32"))
    },
    **MATRIX,
    tiles="*i32",
    dim="i32",
    detail="fp32",
    a_box=None,
    b_box=None,
)
HALF = dict(a="*bf16", b="*bf16", STEP=64, EVEN=True)
BOX = "tensordesc<bf16[128,64]>"
BAND_SIZES = dict(n="i32", frames="i32", cells="i32", horizon="i32", width="i32", dim="i32", depth="i32")
BAND_FILL = dict(
    BAND_SIZES,
    **dict(a="*bf16", scale="*fp32", power="*fp32", flags="*i32", values="*i16", sums="*i32"),
    **dict(row_box=None, column_box=None, tiles_each="i32", detail="fp32"),
    **dict(DETAIL=2, SCALED=False, TMA=False, EVEN=True, STEP=64, ROWS=128, COLUMNS=128),
)
BAND_ROUNDS = dict(
    BAND_SIZES,
    **dict(similarity="*i16", sums="*i32", picked_gains="*i32", rounds="*i32", covers="*i16", changes="*i64"),
    **dict(words="*i64", histogram="*i32", stop_count="i32", owned="i32", halo="i32", bits="i32"),
)


def describe_greedy(module: Any, sizes: tuple[int, int, int], types: dict[str, str], **flags: bool) -> tuple[Any, ...]:
    """Return kernel, arguments, warps and stages of a greedy kernel, as it is launched."""
    kernel = greedy_kernel(module)
    shape = module.choose_shape(*sizes)
    constants = dict(WEIGHTED=False, STOPS=False) | flags
    return kernel, {**types, **constants, **shape}, shape["num_warps"], 3


def describe_rounds(band: Band, owned: int, warps: int) -> tuple[Any, ...]:
    """Return kernel, arguments, warps and stages of the rounds on a band, as they are launched."""
    shape = band_rounds.choose_shape(band, owned, warps)
    return band_rounds._pick_in_rounds, BAND_ROUNDS | shape, warps, 3


def greedy_kernel(module: Any) -> Any:
    return module._greedy_few_programs if module is greedy_few_programs else module._greedy_many_programs


# kernel, its arguments (a string is a type, anything else a constant), warps, stages
EVERYWHERE = {
    "measure": (similarity._measure, dict(ROWS, flags="*i32", dim="i32", BLOCK=4096), 4, 3),
    "fill": (similarity._fill, dict(FILL, **HALF, SYMMETRIC=True, DETAIL=1, SCALED=False, TMA=False), 8, 4),
    "fill, float32": (
        similarity._fill,
        dict(FILL, a="*fp32", b="*fp32", STEP=32, EVEN=False)
        | dict(SYMMETRIC=False, DETAIL=1, SCALED=False, TMA=False),
        8,
        4,
    ),
    "evaluate": (
        greedy._evaluate,
        dict(GREEDY, chunks="*i32", AFTER=True, WEIGHTED=False),
        4,
        3,
    ),
    "first": (
        greedy._pick_first,
        dict(current_gains="*i32", picks="*i32", gains="*i32", table="*i64", BLOCK=4096),
        8,
        3,
    ),
    "few: five": describe_greedy(greedy_few_programs, (1920, 1920, 5), GREEDY | FEW, STOPS=True),
    "few: one": describe_greedy(greedy_few_programs, (1920, 1920, 1), GREEDY | FEW),
    "few: one, 4,000 tokens": describe_greedy(greedy_few_programs, (4000, 4000, 1), GREEDY | FEW),
    "many: sixteen": describe_greedy(greedy_many_programs, (4320, 4320, 16), GREEDY | MANY, STOPS=True),
    "many: whole video": describe_greedy(greedy_many_programs, (47_040, 47_040, 128), GREEDY | MANY),
    "many: second pass": describe_greedy(
        greedy_many_programs, (11_760, 11_760, 128), WEIGHTED_GREEDY | MANY, WEIGHTED=True
    ),
    "fill_up": (
        greedy._fill_up,
        dict(PICKS, marks="*i8", order="*i32", table="*i64", ORDERED=True, BLOCK=1024),
        4,
        3,
    ),
    "represent": (
        clusters._find_representatives,
        dict(MATRIX, picks="*i32", counts="*i32", representatives="*i32", chunks="*i32"),
        1,
        3,
    ),
    "sum": (
        clusters._sum_clusters,
        dict(ROWS, members="*i64", starts="*i64", out="*fp16", dim="i32", BLOCK=1024, UNROLL=4),
        4,
        3,
    ),
    "gather": (
        clusters._gather_rows,
        dict(ROWS, places="*i64", out="*fp16", out_scale="*fp32", dim="i32", BLOCK=4096),
        4,
        3,
    ),
    "band": (band_similarity._fill_band, BAND_FILL, 8, 4),
    "rounds": describe_rounds(Band(784, 60, 4), 1, 1),
    "rounds: long video": describe_rounds(Band(7200, 60, 4), 7, 1),
    "rounds: wide band": describe_rounds(Band(784, 60, 40), 3, 4),
}
MORE_ON_HOPPER = {
    "band, boxed": (band_similarity._fill_band, BAND_FILL | dict(TMA=True, row_box=BOX, column_box=BOX), 8, 4),
    "fill, scaled": (similarity._fill, dict(FILL, **HALF, SYMMETRIC=False, DETAIL=2, SCALED=True, TMA=False), 8, 4),
    "fill, boxed": (
        similarity._fill,
        dict(FILL, **HALF, SYMMETRIC=True, DETAIL=1, SCALED=False, TMA=True) | dict(a_box=BOX, b_box=BOX),
        8,
        4,
    ),
}


def count_spilled_bytes(
    kernel: triton.JITFunction, arguments: dict[str, Any], warps: int, stages: int, target: int
) -> int:
    names = kernel.arg_names
    given = {name: arguments[name] for name in names}
    types = {
        name: kind if isinstance(kind, str) and not name.isupper() else "constexpr" for name, kind in given.items()
    }
    constants = {(names.index(name),): given[name] for name, kind in types.items() if kind == "constexpr"}
    aligned = [name for name, kind in types.items() if kind[0] == "*" or (kind == "i32" and name not in UNALIGNED)]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, types, constants, attributes)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", target, 32), options=dict(num_warps=warps, num_stages=stages)
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


if __name__ == "__main__":
    target = int(sys.argv[1])
    kernels = EVERYWHERE | MORE_ON_HOPPER if target >= 90 else EVERYWHERE
    spilled = {f"{name} on {target}": count_spilled_bytes(*arguments, target) for name, arguments in kernels.items()}
    print(json.dumps(spilled))
