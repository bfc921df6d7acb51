"""Table "reuse": time saved and accuracy lost by encoding only slices that differ from the last, or a share of all.

Accuracy is that of the trained model on drawn films, as they are and with a camera that stands still. On real footage,
MobileNetV2 says how far the features that a slice takes are from its own. A capture on the CPU shows the time.
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
from floc.budget import Budget
from floc.encoders.slice_choice import SliceOptions, measure_frames, shrink_frames
from floc.video import read

PATCH, SLICE_FRAMES, FPS = 14, 2, 2.0
OFF = "off"
TOLERANCES = (8, 16, 32, 48, 64)
SHARES = ("1/2", "1/4", "1/8")
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
    tolerances, shares = ((8, 80), ("1/2",)) if small else (TOLERANCES, SHARES)
    settings = [OFF, *(f"reuse {value}" for value in tolerances)]
    settings += [f"{kind} {share}" for share in shares for kind in ("encode", "uniform")]
    with open_videos(small) as paths:
        footage = [record for path in paths for record in measure_footage(path, settings[1:], echo)]
        speed = measure_speed(paths, small, echo)
    return {"accuracy": measure_accuracy(small, settings, echo), "footage": footage, "speed": speed}


def find_sources(frames: np.ndarray, setting: str) -> np.ndarray:
    """Return the slice whose tokens each slice of frames [F, height, width, 3] takes, [T] int64."""
    kind, _, value = setting.partition(" ")
    numbers = np.arange(len(frames) // SLICE_FRAMES)
    if kind == OFF:
        return numbers
    if kind == "uniform":  # every second slice, for 1/2
        count = Budget.parse(value, None, None).count(len(numbers))
        places = ((np.arange(count) + 0.5) * len(numbers) / count).astype(int)
        return places[np.searchsorted((places[1:] + places[:-1]) / 2, numbers)]
    options = SliceOptions(**parse_setting(setting))
    rule = options.create_rule(partial(measure_frames, patch=PATCH), partial(shrink_frames, patch=PATCH))
    return rule.find_sources(torch.from_numpy(frames).unflatten(0, (-1, SLICE_FRAMES)))


def parse_setting(setting: str) -> dict[str, Any]:
    """Return the options of a capture.

    >>> parse_setting("reuse 8"), parse_setting("encode 1/2"), parse_setting("off")
    ({'reuse': 8.0}, {'encode': '1/2'}, {})
    """
    kind, _, value = setting.partition(" ")
    return {} if kind == OFF else {kind: float(value) if kind == "reuse" else value}


def measure_accuracy(small: bool, settings: Sequence[str], echo: Echo) -> list[dict[str, Any]]:
    """Ask the trained model about films whose slices have the tokens of their source."""
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
    counts: dict[tuple[str, str, str], list[np.ndarray]] = {}
    shares: dict[tuple[str, str], list[float]] = {}
    for exam in exams:
        for camera in ("moves", "stands still"):
            film = exam.film if camera == "moves" else hold_camera(exam.film)
            frames = render_film(film)
            tokens = exam.tokens if camera == "moves" else encode_frames(model, frames)
            graded: dict[bytes, list[np.ndarray]] = {}
            for setting in settings:
                sources = find_sources(frames, setting)
                shares.setdefault((camera, setting), []).append(len(np.unique(sources)) / len(sources))
                if sources.tobytes() not in graded:
                    taken = replace(exam, tokens=tokens[torch.from_numpy(sources)])
                    kept = [None, floc.compress(taken.tokens, ratio=RATIOS[1])]
                    graded[sources.tobytes()] = [examiner.grade(taken, one) for one in kept]
                for ratio, count in zip(RATIOS, graded[sources.tobytes()], strict=True):
                    counts.setdefault((camera, setting, ratio), []).append(count)

    def compare(camera: str, setting: str, other: str, ratio: str) -> tuple[float, float]:
        """Return the difference of two settings in accuracy, and its standard error over films."""
        own, base = (np.stack(counts[camera, one, ratio]) for one in (setting, other))
        films = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
        means, base_means = (compute_accuracy(each[films].sum(1))[2] for each in (own, base))
        difference = compute_accuracy(own.sum(0))[2] - compute_accuracy(base.sum(0))[2]
        return float(difference), float(np.nanstd(means - base_means))

    records = []
    for (camera, setting, ratio), graded_films in counts.items():
        own = np.stack(graded_films)
        films = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
        record: dict[str, Any] = {"camera": camera, "setting": setting, "keep": ratio, "films": len(own)}
        record |= {"share": float(np.mean(shares[camera, setting])), "questions": int(own[..., 1].sum())}
        record |= {"mean": float(compute_accuracy(own.sum(0))[2])}
        record |= {"error": float(np.nanstd(compute_accuracy(own[films].sum(1))[2]))}
        record["to_off"] = compare(camera, setting, OFF, ratio)
        if setting.startswith("encode"):
            record["to_uniform"] = compare(camera, setting, setting.replace("encode", "uniform"), ratio)
        records.append(record)
        difference, uncertainty = record["to_off"]
        accuracy = f"{100 * record['mean']:.1f}, {100 * difference:+.1f} +- {100 * uncertainty:.1f}"
        echo(f"camera {camera}, {setting}, {ratio}: {record['share']:.3f} encoded, {accuracy}")
    return records


def hold_camera(film: Any) -> Any:
    """Return a film whose camera does not move within a shot."""
    return replace(film, shots=tuple(replace(shot, closes=shot.opens) for shot in film.shots))


def measure_footage(path: Path, settings: Sequence[str], echo: Echo) -> Iterator[dict[str, Any]]:
    """Yield the share of slices that are encoded, and how far the features of others are from the slice's own."""
    frames, unit, name = encode_footage(path, fps=FPS)
    previous = 1 - (unit[1:] * unit[:-1]).sum(-1)
    for setting in settings:
        sources = find_sources(frames, setting)
        record = {"film": path.name, "encoder": name, "slices": len(sources), "setting": setting}
        record |= {"previous": float(previous.mean()), **measure_errors(unit, sources)}
        echo(f"{path.name}, {setting}: {record['share']:.3f} of {len(sources)} slices encoded")
        yield record


def encode_footage(path: Path, **sampling: Any) -> tuple[np.ndarray, torch.Tensor, str]:
    """Return frames, the unit features of their slices, and the name of the encoder."""
    try:
        network = encoders.get(ENCODER)
    except ValueError:
        network = encoders.get("pixels")
    frames = np.concatenate([batch.pixels for batch in read(path, size=network.frame_size, **sampling)])
    frames = frames[: len(frames) // SLICE_FRAMES * SLICE_FRAMES]
    tokens = torch.cat([torch.as_tensor(network(part)).float() for part in np.array_split(frames, len(frames))])
    return frames, torch.nn.functional.normalize(tokens.unflatten(0, (-1, SLICE_FRAMES)), dim=-1), network.name


def measure_errors(unit: torch.Tensor, sources: np.ndarray) -> dict[str, float]:
    """Return the share of slices that are encoded, and the mean and largest error of the others."""
    is_taken = sources != np.arange(len(sources))
    share = {"share": 1 - float(is_taken.mean())}
    if not is_taken.any():
        return share
    errors = 1 - (unit[is_taken] * unit[sources[is_taken]]).sum(-1)
    return {**share, "mean_error": float(errors.mean()), "largest_error": float(errors.max())}


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
    settings = (OFF, "reuse 8", *(f"encode {share}" for share in SHARES))
    with open_still(paths[0], 2 if small else 30) as still:
        for path in (fixed, still):
            stages: dict[str, dict[str, float]] = {}
            frames, unit, _ = encode_footage(path, fps=FPS, max_frames=FRAMES)

            def capture(setting: str, path: Path = path, stages: dict[str, Any] = stages) -> None:
                sampling: Any = {"fps": FPS, "max_frames": FRAMES}
                options = parse_setting(setting)
                video = floc.capture(model, path, processor=processor, ratio=1 / 8, **sampling, **options)
                stages[setting] = {**video.made["seconds"], "slices": video.shape[0]}

            contenders = [harness.Contender(setting, partial(capture, setting)) for setting in settings]
            for timing in harness.compare(contenders, OFF, rounds=1 if small else 2):
                record = {"film": path.name, "setting": timing.contender, **asdict(timing)}
                record |= measure_errors(unit, find_sources(frames, timing.contender))
                records.append(record | {"stages": stages[timing.contender]})
                echo(f"{path.name}, {timing.contender}: {timing.ms:.0f} ms, {1 / timing.ratio:.2f} times as fast")
    return records


def _select(records: Sequence[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [record for record in records if record["setting"].split()[0] in kinds]


def _name_setting(record: dict[str, Any]) -> str:
    return record["setting"].replace("uniform", "evenly spaced")


def _show_difference(name: str, record: dict[str, Any]) -> str:
    if name not in record or record["setting"] == OFF:
        return ""
    difference, error = record[name]
    return f"{100 * difference:+.1f} ± {100 * error:.1f}"


def _show_accuracy(document: dict[str, Any], *kinds: str) -> str:
    records = _select(document["accuracy"], OFF, *kinds)
    columns: dict[str, Callable[[Any], str]] = {
        "camera": lambda record: record["camera"],
        "setting": _name_setting,
        "tokens kept": lambda record: record["keep"],
        "slices encoded": lambda record: f"{100 * record['share']:.1f}%",
        "right answers": lambda record: f"{100 * record['mean']:.1f}%",
        "standard error": lambda record: f"{100 * record['error']:.1f}",
        "difference to off": partial(_show_difference, "to_off"),
    }
    if "encode" in kinds:
        columns["to evenly spaced"] = partial(_show_difference, "to_uniform")
    first = records[0]
    note = (
        f"The trained tiny model on {first['films']} drawn films of 32 slices, {first['questions']} questions, "
        "mean of the groups. Standard errors are over films; for differences, both are measured on the same films."
    )
    return show_records(records, columns, note, show_environment(document, "numpy", "torch"))


def _show_footage(document: dict[str, Any], *kinds: str) -> str:
    records = _select(document["footage"], *kinds)
    columns: dict[str, Callable[[Any], str]] = {
        "video": lambda record: f"{record['film']}, {record['slices']} slices",
        "setting": _name_setting,
        "slices encoded": lambda record: f"{100 * record['share']:.0f}%",
        "mean error of the others": lambda record: show_number(record.get("mean_error")) or "-",
        "largest": lambda record: show_number(record.get("largest_error")) or "-",
        "mean difference to the slice before": lambda record: show_number(record["previous"]),
    }
    note = (
        "Two frames a second; a slice is two frames. Error: 1 - cosine, between the slice's own features and the "
        "features that it takes from another slice. Difference: the same between consecutive slices. Features by "
        f"{records[0]['encoder']}."
    )
    return show_records(records, columns, note, show_environment(document, "numpy", "torch", "av"))


def _show_speed(document: dict[str, Any]) -> str:
    def show_stage(stage: str, record: Any) -> str:
        return show_number(record["stages"].get(stage, math.nan)) if stage in record["stages"] else "-"

    columns: dict[str, Callable[[Any], str]] = {
        "video": lambda record: f"{record['film']}, {record['stages']['slices']} slices",
        "setting": lambda record: record["setting"],
        "slices encoded": lambda record: f"{100 * record['share']:.0f}%",
        "mean error of the others": lambda record: show_number(record.get("mean_error")) or "-",
        "largest": lambda record: show_number(record.get("largest_error")) or "-",
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
    "reuse",
    run,
    {
        "reuse-accuracy": lambda document: _show_accuracy(document, "reuse"),
        "reuse-footage": lambda document: _show_footage(document, "reuse"),
        "encode-accuracy": lambda document: _show_accuracy(document, "encode", "uniform"),
        "encode-footage": lambda document: _show_footage(document, "encode", "uniform"),
        "reuse-speed": _show_speed,
    },
)
