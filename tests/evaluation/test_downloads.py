from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from floc.evaluation import Wish, grid
from floc.evaluation.downloads import cache, explain, missing

CELLS = grid(Wish(methods=["full", "floc"], tasks=["longvideobench_val_v"]))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def snapshot(hub: Path, repository: str) -> Path:
    folder = hub / repository / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


MODEL, DATA = "models--Qwen--Qwen2.5-VL-7B-Instruct", "datasets--longvideobench--LongVideoBench"


def test_what_to_get_is_said_once_with_its_command(hub: Path) -> None:
    model, data = missing(CELLS)
    assert model.command == "hf download Qwen/Qwen2.5-VL-7B-Instruct"
    assert "about 17 GB" in str(model)
    assert data.command == "hf download longvideobench/LongVideoBench --repo-type dataset"
    assert "agree to its terms" in str(data)
    told = explain([model, data])
    assert str(hub) in told
    assert model.command in told


def test_what_is_there_is_not_asked_for(hub: Path) -> None:
    (snapshot(hub, MODEL) / "model.safetensors").write_text("")
    snapshot(hub, DATA)
    assert missing(CELLS) == []


def test_half_of_a_download_is_incomplete(hub: Path) -> None:
    folder = snapshot(hub, MODEL)
    snapshot(hub, DATA)
    (hub / DATA / "blobs").mkdir()
    (hub / DATA / "blobs" / "x.incomplete").write_text("")
    assert [each.state for each in missing(CELLS)] == ["incomplete", "incomplete"]
    (hub / DATA / "blobs" / "x.incomplete").unlink()
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "1.safetensors").write_text("")
    assert [(each.kind, each.state) for each in missing(CELLS)] == [("model", "incomplete")]
    (folder / "2.safetensors").write_text("")
    assert missing(CELLS) == []


def test_weights_in_a_folder(hub: Path, tmp_path: Path) -> None:
    snapshot(hub, DATA)
    cells = grid(Wish(models=[f"qwen2.5-vl-7b={tmp_path / 'w'}"], methods=["full"], tasks=["longvideobench_val_v"]))
    with pytest.raises(FileNotFoundError, match=r"no config\.json there"):
        missing(cells)
    (tmp_path / "w").mkdir()
    (tmp_path / "w/config.json").write_text("{}")
    assert missing(cells) == []


def test_weights_that_must_be_converted_are_never_run_as_they_are(hub: Path, tmp_path: Path) -> None:
    snapshot(hub, DATA)
    wish = Wish(models=["llava-video-7b"], methods=["full"], tasks=["longvideobench_val_v"])
    for state in ("missing", "not converted"):
        (needed,) = missing(grid(wish))
        assert needed.state == state
        assert "--models llava-video-7b=FOLDER" in str(needed)
        if state == "missing":
            (snapshot(hub, "models--lmms-lab--LLaVA-Video-7B-Qwen2") / "model.safetensors").write_text("")
    (tmp_path / "config.json").write_text("{}")
    assert missing(grid(dataclasses.replace(wish, models=[f"llava-video-7b={tmp_path}"]))) == []


def test_other_tasks_are_for_lmms_eval_to_find(hub: Path) -> None:
    assert [each.kind for each in missing(grid(Wish(methods=["full"], tasks=["mine"])))] == ["model"]


def test_the_cache_is_where_hugging_face_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache() == Path.home() / ".cache/huggingface/hub"
    monkeypatch.setenv("HF_HOME", "/a")
    assert cache() == Path("/a/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/b")
    assert cache() == Path("/b")
