"""Tests of the selection: the tokens of `floc.compress`, in exactly the requested number."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import floc
from floc.integrations.vllm.selection import select_indices, warm_up
from floc.integrations.vllm.settings import Settings

METHODS = ("floc", "floc-paper", "divprune", "random", "ts_llava", "kmeans")


@pytest.mark.parametrize("method", METHODS)
def test_indices_equal_compress(method: str, tokens: np.ndarray) -> None:
    embeds = torch.from_numpy(tokens)
    indices = select_indices(embeds.flatten(0, 2), tuple(embeds.shape[:3]), Settings(ratio="1/8", method=method))
    assert indices.tolist() == floc.compress(embeds, ratio="1/8", method=method).indices.tolist()


def test_passes_options_to_method(tokens: np.ndarray) -> None:
    embeds = torch.from_numpy(tokens)
    options = dict(block=16, dedupe=1, detail=1)
    indices = select_indices(embeds.flatten(0, 2), tuple(embeds.shape[:3]), Settings(budget=50, options=options))
    expected = floc.compress(embeds, budget=50, **options).indices.tolist()
    assert indices.tolist() == expected
    assert expected != floc.compress(embeds, budget=50).indices.tolist()


EXTREMES = {
    "zeros": torch.zeros(240, 8),
    "constants": torch.full((240, 8), 3.0),
    "huge": 3e38 * torch.randn(240, 8, generator=torch.Generator().manual_seed(1)).sign(),
    "tiny": 1e-38 * torch.randn(240, 8, generator=torch.Generator().manual_seed(2)),
    "not finite": torch.eye(240, 8) / torch.eye(240, 8),
    "few nonzero": torch.eye(240, 8),
    "bfloat16": torch.randn(240, 8, generator=torch.Generator().manual_seed(0)).bfloat16(),
}


@pytest.mark.parametrize("method", METHODS[:3])
@pytest.mark.parametrize("count", [1, 7, 239])
@pytest.mark.parametrize("embeds", EXTREMES.values(), ids=EXTREMES)
def test_keeps_exact_count(embeds: torch.Tensor, count: int, method: str) -> None:
    indices = select_indices(embeds, (10, 4, 6), Settings(budget=count, method=method))
    assert len({*indices.tolist()}) == count
    assert indices.tolist() == sorted(indices.tolist())


def test_spaces_tokens_evenly_if_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    embeds = torch.eye(12)
    embeds[5, 5] = torch.inf
    assert select_indices(embeds, (3, 2, 2), Settings(budget=3)).tolist() == [0, 4, 8]
    assert "not finite" in caplog.text


def test_keeps_all_tokens_of_short_video() -> None:
    assert select_indices(torch.eye(12), (3, 2, 2), Settings(budget=99)).tolist() == [*range(12)]


def test_unwritable_record_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(select_indices(torch.eye(12), (3, 2, 2), Settings(budget=3, record=str(tmp_path)))) == 3
    assert f"could not write its record to {tmp_path}" in caplog.text


def test_profiling_video_is_fast() -> None:
    """vLLM profiles its memory with a video of zeros at the model's largest size."""
    embeds = torch.zeros(16 * 32 * 32, 1024, dtype=torch.bfloat16)
    settings = Settings(ratio="1/8")
    select_indices(embeds[:64], (1, 8, 8), settings)  # compiles
    started = time.perf_counter()
    assert len(select_indices(embeds, (16, 32, 32), settings)) == 2048
    assert time.perf_counter() - started < 2


COUNT_COMPILED = """
import sys
import torch
from floc.integrations.vllm.selection import select_indices, warm_up
from floc.integrations.vllm.settings import Settings

def count_compiled():
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("floc.selection.cpu")]
    functions = [value for module in modules for value in vars(module).values()]
    return [len(function.signatures) for function in functions if hasattr(function, "signatures")]

settings = Settings(budget=300)
warm_up(settings, 16, torch.bfloat16, torch.device("cpu"))
before = count_compiled()
select_indices(torch.randn(64 * 64, 16).bfloat16(), (64, 8, 8), settings)
assert sum(before) > 0
assert before == count_compiled(), (before, count_compiled())
"""


def test_warm_up_compiles_everything() -> None:
    subprocess.run([sys.executable, "-c", COUNT_COMPILED], check=True)


def test_warm_up_writes_no_record(tmp_path: Path) -> None:
    warm_up(Settings(ratio="1/8", record=str(tmp_path / "kept.jsonl")), 8, torch.float32, torch.device("cpu"))
    assert not (tmp_path / "kept.jsonl").exists()


def test_record_has_a_line_per_video(tmp_path: Path) -> None:
    settings = Settings(budget=3, record=str(tmp_path / "kept.jsonl"))
    videos = [torch.eye(12), torch.eye(8)]
    kept = [select_indices(video, (len(video) // 4, 2, 2), settings).tolist() for video in videos]
    lines = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [line["kept"] for line in lines] == kept
    assert [line["shape"] for line in lines] == [[3, 2, 2], [2, 2, 2]]
    assert all(line["seconds"] > 0 for line in lines)
