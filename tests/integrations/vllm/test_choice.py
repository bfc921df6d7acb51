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
from floc.integrations.vllm.choice import kept_indices, warm_up
from floc.integrations.vllm.settings import Settings

METHODS = ("floc", "floc-paper", "divprune", "random", "ts_llava", "kmeans")


@pytest.mark.parametrize("method", METHODS)
def test_the_same_tokens_as_compress(method: str, tokens: np.ndarray) -> None:
    embeds = torch.from_numpy(tokens)
    found = kept_indices(embeds.flatten(0, 2), tuple(embeds.shape[:3]), Settings(ratio="1/8", method=method))
    assert found.tolist() == floc.compress(embeds, ratio="1/8", method=method).indices.tolist()


def test_options_reach_the_method(tokens: np.ndarray) -> None:
    embeds = torch.from_numpy(tokens)
    options = dict(block=16, dedupe=1, detail=1)
    found = kept_indices(embeds.flatten(0, 2), tuple(embeds.shape[:3]), Settings(tokens=50, options=options))
    expected = floc.compress(embeds, budget=50, **options).indices.tolist()
    assert found.tolist() == expected
    assert expected != floc.compress(embeds, budget=50).indices.tolist()


EXTREMES = {
    "zeros": torch.zeros(240, 8),
    "constants": torch.full((240, 8), 3.0),
    "huge": 3e38 * torch.randn(240, 8, generator=torch.Generator().manual_seed(1)).sign(),
    "tiny": 1e-38 * torch.randn(240, 8, generator=torch.Generator().manual_seed(2)),
    "not finite": torch.eye(240, 8) / torch.eye(240, 8),
    "one token differs": torch.eye(240, 8),
    "bfloat16": torch.randn(240, 8, generator=torch.Generator().manual_seed(0)).bfloat16(),
}


@pytest.mark.parametrize("method", METHODS[:3])
@pytest.mark.parametrize("count", [1, 7, 239])
@pytest.mark.parametrize("embeds", EXTREMES.values(), ids=EXTREMES)
def test_exactly_as_many_as_there_are_placeholders(embeds: torch.Tensor, count: int, method: str) -> None:
    found = kept_indices(embeds, (10, 4, 6), Settings(tokens=count, method=method))
    assert len({*found.tolist()}) == count
    assert found.tolist() == sorted(found.tolist())


def test_a_video_that_is_not_finite_ends_no_engine(caplog: pytest.LogCaptureFixture) -> None:
    embeds = torch.eye(12)
    embeds[5, 5] = torch.inf
    assert kept_indices(embeds, (3, 2, 2), Settings(tokens=3)).tolist() == [0, 4, 8]
    assert "not finite" in caplog.text


def test_all_may_be_kept() -> None:
    assert kept_indices(torch.eye(12), (3, 2, 2), Settings(tokens=99)).tolist() == [*range(12)]


def test_a_record_that_cannot_be_written_ends_no_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(kept_indices(torch.eye(12), (3, 2, 2), Settings(tokens=3, record=str(tmp_path)))) == 3
    assert f"could not write to {tmp_path}" in caplog.text


def test_what_vllm_measures_its_memory_with_takes_no_time() -> None:
    """Sixteen frames of nothing, as large as a model takes them."""
    embeds = torch.zeros(16 * 32 * 32, 1024, dtype=torch.bfloat16)
    settings = Settings(ratio="1/8")
    kept_indices(embeds[:64], (1, 8, 8), settings)  # compiles
    started = time.perf_counter()
    assert len(kept_indices(embeds, (16, 32, 32), settings)) == 2048
    assert time.perf_counter() - started < 2


FIRST = """
import torch
from floc.integrations.vllm.choice import kept_indices, warm_up
from floc.integrations.vllm.settings import Settings
from floc.selection import picking, rows, tiles

def compiled():
    everything = [each for module in (picking, rows, tiles) for each in vars(module).values()]
    return [len(each.signatures) for each in everything if hasattr(each, "signatures")]

settings = Settings(tokens=300)
warm_up(settings, 16, torch.bfloat16, torch.device("cpu"))
before = compiled()
kept_indices(torch.randn(64 * 64, 16).bfloat16(), (64, 8, 8), settings)
assert sum(before) > 0
assert before == compiled(), (before, compiled())
"""


def test_the_first_video_finds_all_compiled() -> None:
    subprocess.run([sys.executable, "-c", FIRST], check=True)


def test_warming_up_is_not_told_of(tmp_path: Path) -> None:
    warm_up(Settings(ratio="1/8", record=str(tmp_path / "kept.jsonl")), 8, torch.float32, torch.device("cpu"))
    assert not (tmp_path / "kept.jsonl").exists()


def test_a_line_for_each_video(tmp_path: Path) -> None:
    settings = Settings(tokens=3, record=str(tmp_path / "kept.jsonl"))
    videos = [torch.eye(12), torch.eye(8)]
    found = [kept_indices(each, (len(each) // 4, 2, 2), settings).tolist() for each in videos]
    lines = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [each["kept"] for each in lines] == found
    assert [each["shape"] for each in lines] == [[3, 2, 2], [2, 2, 2]]
    assert all(each["seconds"] > 0 for each in lines)
