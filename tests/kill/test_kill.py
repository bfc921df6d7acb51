"""A few stops of commands. `make test-kill` runs hundreds."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import floc
from floc import files

pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")
if sys.platform != "linux":
    pytest.skip("process groups and signals are tested on Linux", allow_module_level=True)

from tests.kill import disk
from tests.kill.operations import COMPRESS, STREAM
from tests.kill.suite import KILLS, plan_trials, summarize
from tests.kill.trials import (
    Defect,
    Moment,
    Reference,
    Workspace,
    list_files,
    require_complete,
    require_same,
    try_kill,
    try_signal,
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("kill"))


def test_killed_stream_continues(workspace: Workspace) -> None:
    assert try_kill(workspace, STREAM, Moment(write=150))


def test_interrupted_command_leaves_the_earlier_output(workspace: Workspace) -> None:
    try_signal(workspace, COMPRESS, signal.SIGINT, Moment(after_s=0.1))


def test_disk_without_room_for_the_output(workspace: Workspace) -> None:
    disk.try_file_limit(workspace, COMPRESS, 0.5)


@pytest.fixture
def compressed(tmp_path: Path) -> Reference:
    """The reference of a folder with one output."""
    tokens = np.random.default_rng(0).standard_normal((4, 2, 2, 8)).astype(np.float32)
    files.write_kept(floc.compress(tokens, budget=4), tmp_path / "kept.safetensors")
    return Reference(COMPRESS.read_outputs(tmp_path), None, list_files(tmp_path), 1.0, 1, 1, 1)


def test_detects_a_partly_written_output(compressed: Reference, tmp_path: Path) -> None:
    path = tmp_path / "kept.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(Defect, match="cannot be read after the stop"):
        require_complete(COMPRESS, tmp_path, compressed, {})


def test_detects_another_result(compressed: Reference, tmp_path: Path) -> None:
    path = tmp_path / "kept.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Defect, match="neither the earlier nor the new output"):
        require_complete(COMPRESS, tmp_path, compressed, {})
    with pytest.raises(Defect, match="another result than that of an uninterrupted run"):
        require_same(COMPRESS, tmp_path, compressed)


def test_detects_leftovers(compressed: Reference, tmp_path: Path) -> None:
    require_same(COMPRESS, tmp_path, compressed)
    (tmp_path / ".kept.safetensors.x1").touch()
    require_complete(COMPRESS, tmp_path, compressed, {})
    with pytest.raises(Defect, match="left behind after the second run"):
        require_same(COMPRESS, tmp_path, compressed)
    (tmp_path / "kept.part").touch()
    with pytest.raises(Defect, match="unknown names"):
        require_complete(COMPRESS, tmp_path, compressed, {})


def test_full_scale_has_200_kills() -> None:
    trials = plan_trials()
    assert sum(KILLS.values()) == 200
    assert sum(trial.kind == "SIGKILL" for trial in trials) == 200
    assert len(set(map(str, trials))) == len(trials)


def test_summary_counts_stops_and_defects() -> None:
    def make_outcome(name: str, defect: str = "", counted: bool = True) -> dict[str, object]:
        return {"kind": "SIGKILL", "operation": name, "counted": counted, "defect": defect}

    summary = summarize([make_outcome("a"), make_outcome("a", "it hangs"), make_outcome("b", counted=False)])
    assert [(row["operation"], row["stops"], row["defects"]) for row in summary["rows"]] == [("a", 2, 1), ("b", 0, 0)]
    assert [outcome["defect"] for outcome in summary["defects"]] == ["it hangs"]
