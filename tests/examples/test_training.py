"""Training as users run it: one file for each model, written by a clock, whatever happens to the others."""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'floc-video[hf]'")

from examples.tiny_video_model import exam, train, train_all
from examples.tiny_video_model.checkpoint import (
    CHECKPOINT,
    describe_checkpoint,
    load_checkpoint,
    pack_checkpoint,
    write_sums,
)

SMALL = ("--batch-tokens", "400")


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, ...]]:
    models = {
        "whole": ("--seed", "1", *SMALL),
        "bad": ("--seed", "9"),
        "late": ("--rows", "6", "--columns", "10", "--exam-films", "1000000", *SMALL),
    }
    monkeypatch.setattr(train_all, "MODELS", models)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return models


def test_a_model_that_fails_does_not_lose_the_others(
    models: dict[str, tuple[str, ...]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-o", str(tmp_path), "--minutes", "0.05", "--exam-films", "1", "--models", "whole", "bad"]
    with pytest.raises(SystemExit, match=r"the training of bad did not finish; see .*log\.json"):
        train_all.main(arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.json", "whole.tar"]
    log = json.loads((tmp_path / "log.json").read_text())
    assert [log[name]["state"] for name in ("whole", "bad")] == ["finished", "failed"]
    assert any("64 slices, exam" in line for line in log["whole"]["printed"])
    assert any("--seed: 0 to 3" in line for line in log["bad"]["printed"])
    _, processor = load_checkpoint(tmp_path / "whole.tar")
    assert processor.tokenizer.eos_token == "<|im_end|>"
    settings = {"seed": 1, "rows": 4, "columns": 6, "drop": False, "device": "CPU"}
    assert settings.items() <= describe_checkpoint(tmp_path / "whole.tar")["training"].items()
    assert str(CHECKPOINT) in capfd.readouterr().err


def list_group(number: int) -> list[str]:
    """Return the processes of a group that still run."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            running += [path.parent.name] if state != "Z" and int(group) == number else []
    return running


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see the processes that are left")
def test_a_model_that_is_late_is_stopped_and_its_checkpoint_stays(
    models: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    training = train_all.Training("late", tmp_path, time.time(), ["--processes", "1"])  # its exam never ends
    path, limit = tmp_path / "late.tar", time.monotonic() + 200
    try:
        while not path.exists() and time.monotonic() < limit:
            time.sleep(0.2)
    finally:
        training.wait(time.time() + 1)
    assert training.describe()["state"] == "stopped, as it was late"
    assert not list_group(training.process.pid)
    assert describe_checkpoint(path)["training"]["rows"] == 6


def test_a_checkpoint_in_one_file_is_checked_like_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    pack_checkpoint(CHECKPOINT, path)
    whole, packed = (load_checkpoint(source)[0].state_dict() for source in (CHECKPOINT, path))
    assert all(value.equal(packed[name]) for name, value in whole.items())
    assert describe_checkpoint(path) == describe_checkpoint(CHECKPOINT)
    data = bytearray(path.read_bytes())
    place = data.find(b"model.safetensors") + 5_000_000
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is not the file that SHA256SUMS names"):
        load_checkpoint(path)
    path.write_bytes(b"no archive" * 100)
    with pytest.raises(ValueError, match=r"model\.tar is not the \.tar file of a checkpoint"):
        load_checkpoint(path)
    folder = tmp_path / "foreign"
    shutil.copytree(CHECKPOINT, folder)
    (folder / "SHA256SUMS").unlink()
    with tarfile.open(path, "w") as archive:
        for file in folder.iterdir():
            archive.add(file, file.name)
    with pytest.raises(ValueError, match="no SHA256SUMS, so this is not a checkpoint"):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "nothing.tar")


def test_training_without_a_gpu_names_its_time_and_the_trained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: False)
    trained: list[Path] = []
    monkeypatch.setattr(train, "train", lambda output, *rest, **options: trained.append(output))
    monkeypatch.setattr("sys.argv", ["train", "-o", str(tmp_path / "tiny"), "--minutes", "1"])
    train.main()
    assert trained == [tmp_path / "tiny"]
    message = capsys.readouterr().err
    assert "no GPU: a CPU core takes about 20 hours for what a GPU learns in nine minutes" in message
    assert f"a trained checkpoint is in {CHECKPOINT}" in message


def train_further(monkeypatch: pytest.MonkeyPatch, output: Path, start: Path, *options: str) -> None:
    given = ("--start", str(start), "--steps", "1", "--processes", "0", "--exam-films", "1", *SMALL, *options)
    monkeypatch.setattr("sys.argv", ["train", "-o", str(output), *given])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    train.main()


def test_a_trained_model_is_trained_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "further.tar", tmp_path / "again.tar"]
    for path in paths:
        train_further(monkeypatch, path, CHECKPOINT, "--drop", "--seed", "2")
    before, after, again = (load_checkpoint(path)[0].state_dict() for path in (CHECKPOINT, *paths))
    changed = [name for name, value in before.items() if not value.equal(after[name])]
    assert changed
    assert all(name.startswith("model.language_model") or name == "lm_head.weight" for name in changed)
    # the first step is short: these are the weights of the checkpoint, not random ones
    assert all((before[name] - after[name]).norm() < 0.05 * before[name].norm() for name in changed)
    assert all(value.equal(again[name]) for name, value in after.items())  # so many steps can be repeated
    made = describe_checkpoint(paths[0])["training"]
    assert {"steps": 1, "seed": 2, "drop": True, "rate": train.FURTHER_RATE}.items() <= made.items()
    assert made["start"].items() >= describe_checkpoint(CHECKPOINT)["training"].items()
    assert f"{made['start']['weights']}  model.safetensors" in (CHECKPOINT / "SHA256SUMS").read_text()


def test_films_of_further_training_are_others() -> None:
    seeds = range(train.MAX_SEED + 1)
    firsts = [train.get_first_film(seed, is_further=is_further) for seed in seeds for is_further in (False, True)]
    assert len(set(firsts)) == len(firsts)
    assert max(firsts) < exam.TEST_SEED


def test_other_tokens_a_slice_train_the_vision_encoder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_further(monkeypatch, tmp_path / "dense", CHECKPOINT, "--rows", "6", "--columns", "10", "--rate", "0.1")
    before, after = (load_checkpoint(path)[0].model.visual.state_dict() for path in (CHECKPOINT, tmp_path / "dense"))
    assert any(not value.equal(after[name]) for name, value in before.items())
    made = describe_checkpoint(tmp_path / "dense")["training"]
    assert (made["rows"], made["columns"], made["rate"]) == (6, 10, 0.1)


def test_a_start_that_is_damaged_or_foreign_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "start"
    shutil.copytree(CHECKPOINT, folder)

    def refuse() -> str:
        with pytest.raises(SystemExit):
            train_further(monkeypatch, tmp_path / "out", folder)
        return capsys.readouterr().err

    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"][-1]["content"] = "<|other|>"
    (folder / "tokenizer.json").write_text(json.dumps(data))
    assert "tokenizer.json is not the file that SHA256SUMS names" in refuse()
    write_sums(folder)
    assert "another vocabulary than this training" in refuse()
    (folder / "training.json").unlink()
    write_sums(folder)
    assert "no training.json, so its settings are not known" in refuse()
    (folder / "SHA256SUMS").unlink()
    assert "no SHA256SUMS, so this is not a checkpoint" in refuse()
    shutil.rmtree(folder)
    assert "--start" in refuse()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [("--rate", "0"), ("--rate", "nan"), ("--steps", "0")])
def test_wrong_rates_and_steps_are_refused(
    options: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train_further(monkeypatch, tmp_path / "out", CHECKPOINT, *options)
    assert options[0] in capsys.readouterr().err


@pytest.mark.parametrize("drop", [False, True])
def test_tokens_are_left_out_in_further_training_too(drop: bool) -> None:
    trainer = train.Trainer(4, 6, 2, drop=drop, start=CHECKPOINT, batch_tokens=400)
    batches, _ = trainer._open_batches(8, uses=train.USES)
    counts = {next(batches).kept.shape[1] for _ in range(12)}
    assert (len(counts) > 1) == drop
    assert max(counts) == 8 * 24


def test_all_models_are_trained_further_from_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(train_all, "train_models", lambda names, folder, until, options: given.extend(options))
    train_all.main(["-o", str(tmp_path), "--models", "drop-0"])
    assert "--start" not in given
    train_all.main(["-o", str(tmp_path), "--models", "drop-0", "--start", str(CHECKPOINT)])
    assert given[-2:] == ["--start", str(CHECKPOINT)]
