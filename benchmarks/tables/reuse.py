"""Table "reuse": time saved and accuracy lost by encoding only slices that differ from the last encoded one.

Accuracy is that of the trained model on drawn films, as they are and with a camera that stands still. On real footage,
MobileNetV2 says how far the features of reused slices are from their own. A capture on the CPU shows the time.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import floc
from benchmarks import harness, models
from benchmarks.markdown import RATIO_NOTE, show_environment, show_number, show_records
from benchmarks.registry import BenchTable, Echo, Unavailable
from benchmarks.videos import ENCODER, open_videos
from floc import encoders
from floc.encoders.reuse import SliceMemory, measure_frames
from floc.video import read

PATCH, SLICE_FRAMES, FPS = 14, 2, 2.0
TOLERANCES = (8, 16, 32, 48, 64)
RATIOS = ("1", "1/8")
FILMS, SMALL_FILMS = 16, 2
FIRST_FILM = 500  # after the seeds of other tables, whose films settings were chosen on
RESAMPLES = 2000
FIXED = "intel_person.mp4"  # a fixed camera, and people who pass
FRAMES = 48  # of a capture
NOISE = 2.0  # standard deviation of levels
STAGES = ("decode", "compare", "preprocess", "vision", "select")
# a vision encoder between the tiny and the real ones, so that a CPU needs minutes, not hours
VISION = dict(depth=4, hidden_size=256, intermediate_size=684, num_heads=4, fullatt_block_indexes=[3])


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure accuracy, shares of real footage, and the time of a capture."""
    tolerances = (8, 80) if small else TOLERANCES
    with open_videos(small) as paths:
        footage = [record for path in paths for record in measure_footage(path, tolerances, echo)]
        speed = measure_speed(paths, small, echo)
    return {"accuracy": measure_accuracy(small, tolerances, echo), "footage": footage, "speed": speed}


def find_sources(frames: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the slice whose tokens each slice of frames [F, height, width, 3] takes, [T] int64."""
    memory = SliceMemory(tolerance, lambda slices, last: measure_frames(slices, last, PATCH))
    is_new = memory.find_new(torch.from_numpy(frames).unflatten(0, (-1, SLICE_FRAMES)))
    return np.maximum.accumulate(np.where(is_new, np.arange(len(is_new)), 0))


def measure_accuracy(small: bool, tolerances: Sequence[int], echo: Echo) -> list[dict[str, Any]]:
    """Ask the trained model about films whose reused slices have the tokens of their source."""
    try:
        from examples.tiny_video_model.checkpoint import load_checkpoint
        from examples.tiny_video_model.exam import TEST_SEED, Examiner, compute_accuracy, make_exams
        from examples.tiny_video_model.packed import encode_frames
        from examples.tiny_video_model.rendering import render_film

        model, processor = load_checkpoint()
    except (ImportError, ValueError) as error:
        raise Unavailable(f"the trained model cannot be loaded: {error}") from error
    examiner = Examiner(model, processor.tokenizer)
    exams = list(make_exams(model, SMALL_FILMS if small else FILMS, seed=TEST_SEED + FIRST_FILM))
    counts: dict[tuple[str, int, str], list[np.ndarray]] = {}
    shares: dict[tuple[str, int], list[float]] = {}
    for exam in exams:
        for camera in ("moves", "stands still"):
            film = exam.film if camera == "moves" else hold_camera(exam.film)
            frames = render_film(film)
            tokens = exam.tokens if camera == "moves" else encode_frames(model, frames)
            graded: dict[bytes, list[np.ndarray]] = {}
            for tolerance in (-1, *tolerances):  # -1: no reuse
                sources = find_sources(frames, tolerance)
                shares.setdefault((camera, tolerance), []).append(len(np.unique(sources)) / len(sources))
                if sources.tobytes() not in graded:
                    taken = replace(exam, tokens=tokens[torch.from_numpy(sources)])
                    kept = [None, floc.compress(taken.tokens, ratio=RATIOS[1])]
                    graded[sources.tobytes()] = [examiner.grade(taken, one) for one in kept]
                for ratio, count in zip(RATIOS, graded[sources.tobytes()], strict=True):
                    counts.setdefault((camera, tolerance, ratio), []).append(count)
    records = []
    for (camera, tolerance, ratio), graded_films in counts.items():
        own, base = np.stack(graded_films), np.stack(counts[camera, -1, ratio])
        films = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
        means, base_means = (compute_accuracy(right[films].sum(1))[2] for right in (own, base))
        record: dict[str, Any] = {"camera": camera, "reuse": tolerance, "keep": ratio, "films": len(own)}
        record |= {"share": float(np.mean(shares[camera, tolerance])), "error": float(np.nanstd(means))}
        record |= {"mean": float(compute_accuracy(own.sum(0))[2]), "questions": int(own[..., 1].sum())}
        difference = float(record["mean"] - compute_accuracy(base.sum(0))[2])
        record |= {"difference": difference, "difference_error": float(np.nanstd(means - base_means))}
        records.append(record)
        accuracy = f"{100 * record['mean']:.1f}, {100 * difference:+.1f} +- {100 * record['difference_error']:.1f}"
        echo(f"camera {camera}, reuse {tolerance}, {ratio}: {record['share']:.3f} encoded, {accuracy}")
    return records


def hold_camera(film: Any) -> Any:
    """Return a film whose camera does not move within a shot."""
    return replace(film, shots=tuple(replace(shot, closes=shot.opens) for shot in film.shots))


def measure_footage(path: Path, tolerances: Sequence[int], echo: Echo) -> Iterator[dict[str, Any]]:
    """Yield the share of slices that are encoded, and how far reused features are from the slice's own."""
    try:
        network = encoders.get(ENCODER)
    except ValueError:
        network = encoders.get("pixels")
    video = read(path, fps=FPS, size=network.frame_size)
    frames = np.concatenate([batch.pixels for batch in video])
    frames = frames[: len(frames) // SLICE_FRAMES * SLICE_FRAMES]
    tokens = torch.cat([torch.as_tensor(network(part)).float() for part in np.array_split(frames, len(frames))])
    unit: Any = torch.nn.functional.normalize(tokens.unflatten(0, (-1, SLICE_FRAMES)), dim=-1)
    previous = 1 - (unit[1:] * unit[:-1]).sum(-1)
    for tolerance in tolerances:
        sources = find_sources(frames, tolerance)
        reused = sources != np.arange(len(sources))
        errors = 1 - (unit[reused] * unit[sources[reused]]).sum(-1)
        record = {"film": path.name, "encoder": network.name, "slices": len(sources), "reuse": tolerance}
        record |= {"share": 1 - float(reused.mean()), "previous": float(previous.mean())}
        record |= {"mean_error": float(errors.mean()), "largest_error": float(errors.max())} if reused.any() else {}
        echo(f"{path.name}, reuse {tolerance}: {record['share']:.3f} of {len(sources)} slices encoded")
        yield record


@contextmanager
def open_still(source: Path, seconds: int) -> Iterator[Path]:
    """Yield a video of the first picture of another, with noise, as a camera sees it where nothing happens."""
    import av

    first: Any = next(iter(read(source, fps=1.0))).pixels[0]
    first = first[: len(first) // 2 * 2, : first.shape[1] // 2 * 2]
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "still.mp4"
        with av.open(str(path), "w") as out:
            stream = out.add_stream("libx264", 25, options={"crf": "20", "preset": "veryfast"})
            stream.height, stream.width = int(first.shape[0]), int(first.shape[1])
            stream.pix_fmt = "yuv420p"
            for _ in range(25 * seconds):
                picture = (first + rng.normal(0, NOISE, first.shape).astype(np.float32)).clip(0, 255).astype(np.uint8)
                out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            out.mux(stream.encode())
        yield path


def measure_speed(paths: Sequence[Path], small: bool, echo: Echo) -> list[dict[str, Any]]:
    """Time captures in turn, with and without reuse."""
    import transformers

    text = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2)
    vision = dict(VISION, depth=1, fullatt_block_indexes=[0]) if small else VISION
    config = models.make_config(text | {"vocab_size": 1000}, vision, [2, 3, 3])
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.float32).eval()
    processor = models.make_processor(max_tokens=40 if small else 120)
    fixed = next((path for path in paths if path.name == FIXED), paths[0])
    records = []
    with open_still(paths[0], 2 if small else 30) as still:
        for path in (fixed, still):
            stages: dict[str, dict[str, float]] = {}

            def capture(reuse: int | None, path: Path = path, stages: dict[str, Any] = stages) -> None:
                video = floc.capture(
                    model, path, processor=processor, ratio=1 / 8, fps=FPS, max_frames=FRAMES, reuse=reuse
                )
                stages["off" if reuse is None else str(reuse)] = {**video.made["seconds"], "slices": video.shape[0]}

            settings = (None, 8, 32)
            names = ["off" if reuse is None else str(reuse) for reuse in settings]
            contenders = [
                harness.Contender(name, partial(capture, reuse)) for name, reuse in zip(names, settings, strict=True)
            ]
            for timing in harness.compare(contenders, "off", rounds=1 if small else 2):
                record = {"film": path.name, "reuse": timing.contender, **asdict(timing)}
                records.append(record | {"stages": stages[timing.contender]})
                echo(f"{path.name}, reuse {timing.contender}: {timing.ms:.0f} ms, {1 / timing.ratio:.2f} times as fast")
    return records


def _show_tolerance(record: dict[str, Any]) -> str:
    return "off" if record["reuse"] == -1 else str(record["reuse"])


def _show_accuracy(document: dict[str, Any]) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "camera": lambda record: record["camera"],
        "reuse": _show_tolerance,
        "tokens kept": lambda record: record["keep"],
        "slices encoded": lambda record: f"{100 * record['share']:.1f}%",
        "right answers": lambda record: f"{100 * record['mean']:.1f}%",
        "standard error": lambda record: f"{100 * record['error']:.1f}",
        "difference to off": lambda record: (
            ""
            if record["reuse"] == -1
            else f"{100 * record['difference']:+.1f} ± {100 * record['difference_error']:.1f}"
        ),
    }
    first = document["accuracy"][0]
    note = (
        f"The trained tiny model on {first['films']} drawn films of 32 slices, {first['questions']} questions, "
        "mean of the groups. Standard errors are over films; for differences, both are measured on the same films."
    )
    return show_records(document["accuracy"], columns, note, show_environment(document, "numpy", "torch"))


def _show_footage(document: dict[str, Any]) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "video": lambda record: f"{record['film']}, {record['slices']} slices",
        "reuse": _show_tolerance,
        "slices encoded": lambda record: f"{100 * record['share']:.0f}%",
        "mean error of reused tokens": lambda record: show_number(record.get("mean_error")) or "-",
        "largest": lambda record: show_number(record.get("largest_error")) or "-",
        "mean difference to the slice before": lambda record: show_number(record["previous"]),
    }
    network = document["footage"][0]["encoder"]
    note = (
        f"Two frames a second; a slice is two frames. Error: 1 - cosine, between the slice's own features and the "
        f"features that it takes from another slice. Difference: the same between consecutive slices. Features by "
        f"{network}."
    )
    return show_records(document["footage"], columns, note, show_environment(document, "numpy", "torch", "av"))


def _show_speed(document: dict[str, Any]) -> str:
    def show_stage(stage: str, record: Any) -> str:
        return show_number(record["stages"].get(stage, math.nan)) if stage in record["stages"] else "-"

    columns: dict[str, Callable[[Any], str]] = {
        "video": lambda record: f"{record['film']}, {record['stages']['slices']} slices",
        "reuse": lambda record: record["reuse"],
        "seconds": lambda record: show_number(record["ms"], 1e3),
        "share of the time without": lambda record: (
            f"{record['ratio']:.2f} ({record['ratio_p20']:.2f} to {record['ratio_p80']:.2f})"
        ),
        **{f"{stage}, s": partial(show_stage, stage) for stage in STAGES},
    }
    note = (
        f"Capture end to end on the CPU, Qwen2.5-VL with a vision encoder of {VISION['depth']} layers of "
        f"{VISION['hidden_size']} and random weights. still.mp4 is the first picture of a video with noise. Shares: "
        f"{RATIO_NOTE}; stages: the last round."
    )
    return show_records(document["speed"], columns, note, show_environment(document, "torch", "transformers", "av"))


TABLE = BenchTable(
    "reuse", run, {"reuse-accuracy": _show_accuracy, "reuse-footage": _show_footage, "reuse-speed": _show_speed}
)
