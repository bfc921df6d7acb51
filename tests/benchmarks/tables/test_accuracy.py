"""The answers of the repository's trained model, and of another one: a copy with noise in its weights."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import pages, run
from benchmarks.__main__ import main
from benchmarks.tables import accuracy, accuracy_models
from floc import methods

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'floc-video[hf]'")

from examples.tiny_video_model.checkpoint import CHECKPOINT, LOG, load_checkpoint, pack_checkpoint, write_sums

METHODS = ["floc", "floc-paper", "random", "frame_uniform", "dycoke"]


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model of the repository with noise in its weights and another seed in its log, as one file."""
    folder = tmp_path_factory.mktemp("noisy") / "folder"
    shutil.copytree(CHECKPOINT, folder)
    model, _ = load_checkpoint()
    rng = np.random.default_rng(0)
    for weight in model.parameters():
        noise = rng.normal(size=weight.shape, scale=float(0.3 * weight.detach().std()) if weight.numel() > 1 else 0)
        weight.data += weight.new_tensor(noise)
    model.half().save_pretrained(folder)
    log = json.loads((folder / LOG).read_text())
    log[0]["seed"] = 1
    (folder / LOG).write_text(json.dumps(log))
    write_sums(folder)
    pack_checkpoint(folder, folder.with_name("all-1.tar"))
    return folder.with_name("all-1.tar")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """Measure few methods on two films."""
    monkeypatch.setattr(methods, "list_methods", lambda: METHODS)
    monkeypatch.setattr(accuracy, "SMALL_FILMS", 2)
    monkeypatch.setattr(accuracy, "VARIANTS", {"floc:detail=1": {"method": "floc", "detail": 1}})
    monkeypatch.setattr(accuracy_models, "VARIANTS", ["floc:detail=1"])


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_trained_models_are_measured_and_their_rankings_compared(
    noisy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:accuracy-models -->\n<!-- /bench:accuracy-models -->\n")
    before = page.read_text()
    assert pages.fill(page, tmp_path) == ["accuracy-models"]
    assert page.read_text() == before  # nothing until it is measured

    arguments = ["--small", "--films", "3", "--results", str(tmp_path), "--fill", str(page)]
    assert main(["accuracy", "--checkpoint", str(CHECKPOINT), "--checkpoint", str(noisy), *arguments]) == 0
    document = json.loads((tmp_path / "accuracy-models.json").read_text())
    first, second = document["models"]
    assert (first["model"], second["model"]) == ("checkpoint", "all-1")
    assert (first["training"]["seed"], second["training"]["seed"]) == (0, 1)
    assert (first["films"], second["films"]) == (3, 3)
    assert first["training"]["transformers"] == "5.17.0"
    assert first["checkpoint"] != second["checkpoint"]
    assert document["versions"]["torch"]
    # the model of the repository answers as in its own table
    run.run("accuracy", small=True, results=tmp_path, echo=lambda _: None, films=3)
    assert json.loads((tmp_path / "accuracy.json").read_text())["accuracy"] == first["accuracy"]
    assert second["accuracy"] != first["accuracy"]

    by_ratio = {record["keep"]: record for record in document["correlations"]}
    assert [*by_ratio] == [*accuracy.RATIOS, accuracy_models.MEAN]
    for record in by_ratio.values():
        assert -1 <= record["kendall"] <= 1
        assert -1 <= record["spearman"] <= 1
    assert by_ratio["1/8"]["methods"] == len(METHODS)
    assert by_ratio[accuracy_models.MEAN]["methods"] == len(METHODS) - 2  # two cannot keep 1/64
    text = page.read_text()
    assert "## Other trained models" in text
    assert "`all-1`: trained with seed 1, never with missing tokens, 24 tokens a slice, for 8.8 minutes on" in text
    assert text.count("\n| floc-paper |") == 2
    shown = capsys.readouterr().out
    assert f"| checkpoint and all-1 | {by_ratio['1/4']['spearman']:.2f} / {by_ratio['1/4']['kendall']:.2f} |" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_processes_measure_the_same() -> None:
    results = [accuracy.measure_model(CHECKPOINT, True, lambda _: None, processes)["accuracy"] for processes in (1, 2)]
    assert results[0] == results[1]


def make_model(name: str, means: dict[str, float]) -> dict:
    records = [
        {"method": method, "keep": ratio, "mean": mean} for method, mean in means.items() for ratio in accuracy.RATIOS
    ]
    return {"model": name, "accuracy": records}


def test_rank_correlations_by_hand() -> None:
    ranked = {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6, "all tokens": 1.0, "floc:detail=1": 0.1}
    swapped = {"a": 0.5, "b": 0.6, "c": 0.4, "d": 0.3, "all tokens": 0.0, "floc:detail=1": 0.9}
    for record in accuracy_models.correlate(make_model("x", ranked), make_model("y", swapped)):
        assert record["methods"] == 4
        assert record["kendall"] == pytest.approx(4 / 6)  # five pairs agree, one does not
        assert record["spearman"] == pytest.approx(0.8)  # 1 - 6 * (1 + 1) / (4 * 15)


def test_checkpoints_that_cannot_be_measured_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text("{}")
    arguments = ["--small", "--results", str(tmp_path)]
    assert main(["accuracy", "--checkpoint", str(CHECKPOINT), "--checkpoint", str(foreign), *arguments]) == 1
    assert "no SHA256SUMS, so this is not a checkpoint" in capsys.readouterr().err
    assert main(["accuracy", "--checkpoint", str(tmp_path / "gone.tar"), *arguments]) == 1
    assert "gone.tar" in capsys.readouterr().err
    assert main(["accuracy-models", *arguments]) == 1
    assert "name trained models: python -m benchmarks accuracy --checkpoint FILE" in capsys.readouterr().err
    for wrong in (["select", "--films", "3"], ["accuracy", "--films", "0"]):
        with pytest.raises(SystemExit):
            main(wrong)
        assert "--films" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["select", "--checkpoint", str(CHECKPOINT)])
    assert "--checkpoint is for the tables accuracy and horizon-answers" in capsys.readouterr().err
