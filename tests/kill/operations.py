"""The commands that the suite kills: their inputs, their arguments, and how their outputs are compared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

# values that differ between two runs of the same command
VOLATILE = {"seconds", "stage_seconds", "date", "versions", "commit", "command", "written_s", "modified_s", "pieces"}
COMMON = ("torch", "numba", "av", "floc.compression", "floc.files", "floc.encoders", "floc.video", "rich.table")
STORE = (*COMMON, "lance", "floc.archive.store", "floc.archive.maintenance", "floc.archive.search")


@dataclass(frozen=True)
class Operation:
    """A command with its inputs and outputs, all in one folder."""

    name: str
    arguments: str
    make_inputs: Callable[[Path], None]
    read_outputs: Callable[[Path], dict[str, Any]]  # the complete outputs; raises if one is only partly written
    preload: tuple[str, ...] = COMMON
    settings: dict[str, Any] = field(default_factory=dict)  # for `tests.kill.launch`
    ends_in_order: bool = False  # a signal makes it write its last output and end, with status 0 or 1
    read_final: Callable[[Path], Any] | None = None  # what a continued run has in common, if a stop writes more files
    has_earlier_output: bool = False  # the inputs have an output of an earlier run, which the command replaces


def hash_array(array: Any) -> str:
    """Return the type, shape and hash of an array or tensor."""
    values = np.ascontiguousarray(array.float().numpy() if hasattr(array, "float") else array)
    return f"{values.dtype} {values.shape} {hashlib.sha256(values.tobytes()).hexdigest()[:16]}"


def drop_volatile(document: Any) -> Any:
    """Leave out of a JSON document what differs between two runs."""
    if isinstance(document, dict):
        kept = {name: drop_volatile(value) for name, value in document.items() if name not in VOLATILE}
        if "source" in kept:  # trials run in folders of their own
            kept["source"] = Path(kept["source"]).name
        return kept
    if isinstance(document, list):
        return [drop_volatile(value) for value in document]
    return document


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return the hashes of all tensors, and the metadata."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors = {name: hash_array(file.get_tensor(name)) for name in sorted(file.keys())}
        metadata = {name: drop_volatile(json.loads(text)) for name, text in (file.metadata() or {}).items()}
    return {"tensors": tensors, "metadata": metadata}


def read_files(*patterns: str) -> Callable[[Path], dict[str, Any]]:
    """Return a function that reads the safetensors files of a folder."""

    def read(folder: Path) -> dict[str, Any]:
        paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
        return {str(path.relative_to(folder)): read_safetensors(path) for path in paths}

    return read


def read_store(folder: Path) -> dict[str, Any]:
    """Check a store, and return its videos and hashes of their tokens."""
    from floc.archive import Store

    if not (folder / "store").exists():
        return {}
    store = Store(folder / "store", create=True)  # a kill may leave a store without all of its tables
    problems = store.check()
    if problems:
        raise ValueError(f"the store is damaged: {problems[0]}")
    videos = {}
    for video in store.videos():
        opened = store.open(video.id)
        arrays = {name: hash_array(getattr(opened, name)) for name in ("features", "indices", "order")}
        facts = {name: getattr(video, name) for name in ("status", "content", "tokens", "kept", "frames", "encoder")}
        videos[f"{Path(video.uri).name} {video.id}"] = {**facts, "coverage": round(video.coverage or 0, 9), **arrays}
    return videos


def read_indexed_store(folder: Path) -> dict[str, Any]:
    """Return the videos of a store, and what a search finds."""
    from floc.archive import Store

    videos = read_store(folder)
    results = Store(folder / "store").search(np.random.default_rng(0).standard_normal(8).astype(np.float32), 5)
    return {**videos, "search": [(result.video, round(result.similarity, 4)) for result in results]}


def read_report(folder: Path) -> dict[str, Any]:
    """Return the report of an evaluation."""
    outputs = {}
    if (folder / "results/report.json").exists():
        outputs["report"] = drop_volatile(json.loads((folder / "results/report.json").read_text()))
        text = (folder / "results/report.md").read_text()
        if not text.endswith("\n"):
            raise ValueError("report.md is only partly written")
    return outputs


def read_page(folder: Path) -> dict[str, Any]:
    """Return whether the report page of `floc compare` is complete."""
    path = folder / "report.html"
    if not path.exists():
        return {}
    if not path.read_text().rstrip().endswith("</html>"):
        raise ValueError("report.html is only partly written")
    return {"report.html": "complete"}


def _make_film(folder: Path, seconds: int = 240, name: str = "film.mkv", seed: int = 0) -> None:
    from tests.archive.films import make_film

    make_film(folder / name, seconds, seed)


def _make_film_and_output(folder: Path) -> None:
    """Make a film, and an older output in the place of the new one."""
    import floc
    from floc import files

    _make_film(folder)
    tokens = np.random.default_rng(1).standard_normal((4, 3, 3, 8)).astype(np.float32)
    files.write_kept(floc.compress(tokens, ratio="1/4"), folder / "kept.safetensors", source="an earlier run")


def _make_films(folder: Path) -> None:
    from tests.archive.films import make_films

    make_films(folder / "films", 10, seconds=15)


def _make_store(folder: Path) -> None:
    """Make a store of several films, each written as a version of its own."""
    from floc import Store
    from tests.archive.builders import add_video, make_pieces

    store = Store(folder / "store", create=True)
    for number in range(12):
        add_video(store, make_pieces(2, 40 + number), uri=f"/films/film{number}.mkv")


def _make_captured(folder: Path) -> None:
    """Make .floc files to import."""
    from tests.archive.builders import make_piece

    for number in range(6):
        make_piece(120, seed=number, layers=1).save(folder / f"video{number}.floc")


def _make_model(folder: Path) -> None:
    from tests.integrations.transformers.checkpoints import save

    _make_film(folder, 60)
    (folder / "model").mkdir()
    save("qwen2_5_vl", folder / "model")


COMPRESS = Operation(
    "compress",
    "compress film.mkv --encoder pixels --ratio 1/8 -o kept.safetensors",
    _make_film_and_output,
    read_files("kept.safetensors"),
    has_earlier_output=True,
)
STREAM = Operation(
    "stream",
    "stream film.mkv --encoder pixels --budget 64 --segment 10 --state film.state -o segments",
    _make_film,
    read_files("segments/*.safetensors", "film.state"),
    (*COMMON, "floc.streaming.recorder", "floc.video.live"),
    ends_in_order=True,
    read_final=lambda folder: read_safetensors(folder / "segments/latest.safetensors")["tensors"],
)
GROWING = replace(
    STREAM,
    name="stream, by ratio",
    arguments="stream film.mkv --encoder pixels --ratio 1/32 --segment 20 --state film.state -o segments",
)
CAPTURE = Operation(
    "capture",
    "ask film.mkv What? --model model --max-new-tokens 1 -o film.floc",
    _make_model,
    read_files("film.floc"),
    (*COMMON, "transformers", "floc.integrations.transformers.ask"),
)
INGEST = Operation(
    "ingest",
    "ingest films --store store --encoder pixels --ratio 1/16 --workers 2",
    _make_films,
    read_store,
    (*STORE, "floc.archive.ingest"),
)
IMPORT = Operation(
    "store import",
    "store import store video0.floc video1.floc video2.floc video3.floc video4.floc video5.floc",
    _make_captured,
    read_store,
    STORE,
)
EXPORT = Operation(
    "store export",
    "store export store film2.mkv -o out/film2.floc",
    _make_store,
    read_files("out/*.floc"),
    STORE,
)
COMPACT = Operation("store compact", "store compact store", _make_store, read_store, STORE)
INDEX = Operation("store index", "store index store", _make_store, read_indexed_store, STORE)
EVAL = Operation(
    "eval",
    "eval --models qwen2.5-vl-7b --methods full,floc,random --ratio 1/8,1/16 --tasks videomme -o results --gpus 0,1",
    lambda folder: None,
    read_report,
    (*COMMON, "floc.evaluation.preview", "floc.evaluation.report", "floc.evaluation.runner"),
    {"stand_in": 0.15},
    ends_in_order=True,
)
COMPARE = Operation(
    "compare",
    "compare film.mkv --encoder pixels --ratio 1/8 --methods floc,random -o report.html",
    lambda folder: _make_film(folder, 20),
    read_page,
    (*COMMON, "sklearn.manifold", "floc.report", "floc.analysis.compare"),
)
OPERATIONS = {
    operation.name: operation
    for operation in (COMPRESS, STREAM, GROWING, CAPTURE, INGEST, IMPORT, EXPORT, COMPACT, INDEX, EVAL, COMPARE)
}


def copy_inputs(operation: Operation, cache: Path, folder: Path) -> None:
    """Copy the inputs of an operation to a new folder; make them once."""
    source = cache / operation.name.replace(" ", "-").replace(",", "")
    if not source.exists():
        partial = source.with_suffix(".new")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        operation.make_inputs(partial)
        partial.rename(source)
    shutil.copytree(source, folder)
