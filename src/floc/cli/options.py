"""Options that several commands share, and how their values are parsed and checked."""

from __future__ import annotations

import math
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from floc.budget import Budget

if TYPE_CHECKING:
    from floc.blocks import BlockSpec

DEFAULT_RATIO = "1/8"
BUDGET, METHOD, VIDEO = "Budget", "Method", "Video"  # panels of the help


def complete_method(incomplete: str) -> list[str]:
    """Complete the name of a method."""
    from floc import methods

    return [name for name in methods.list_methods() if name.startswith(incomplete)]


def complete_encoder(incomplete: str) -> list[str]:
    """Complete the name of an encoder."""
    return [name for name in ("auto", "pixels", "mobilenet", "hf:") if name.startswith(incomplete)]


Ratio = Annotated[
    str | None, typer.Option(metavar="RATIO", help="Share of the tokens to keep: 1/8 or 0.125.", rich_help_panel=BUDGET)
]
TokenBudget = Annotated[int | None, typer.Option(metavar="N", help="Number of tokens to keep.", rich_help_panel=BUDGET)]
Coverage = Annotated[
    float | None,
    typer.Option(metavar="COSINE", help="Keep the fewest tokens that reach this mean cosine.", rich_help_panel=BUDGET),
]
Method = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_method,
        help="A method, with options: longvu:threshold=0.8.",
        rich_help_panel=METHOD,
    ),
]
Block = Annotated[
    str | None,
    typer.Option(
        metavar="FRAMES", help="Frames per block, 'scene' or 'none'. [dim](floc: 32)[/]", rich_help_panel=METHOD
    ),
]
Backend = Annotated[
    Literal["auto", "cpu", "gpu", "torch", "reference"] | None,
    typer.Option(
        metavar="NAME", help="auto, cpu, gpu, torch or reference. [dim](floc: auto)[/]", rich_help_panel=METHOD
    ),
]
Metric = Annotated[
    Literal["cosine", "gaussian"] | None,
    typer.Option(metavar="NAME", help="cosine or gaussian. [dim](floc: cosine)[/]", rich_help_panel=METHOD),
]
Fps = Annotated[
    str | None,
    typer.Option(metavar="N", help="Frames per second, or 'all'. [dim](default: 1)[/]", rich_help_panel=VIDEO),
]
MaxFrames = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Read at most N frames, evenly spaced. [dim](default: 7200)[/]", rich_help_panel=VIDEO
    ),
]
EncoderName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_encoder,
        help="pixels, mobilenet, hf:MODEL, or auto: the best installed. [dim](default: auto)[/]",
        rich_help_panel=VIDEO,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="Device of the model: cpu, cuda:0. [dim](default: a GPU if there is one)[/]",
        rich_help_panel=VIDEO,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON to stdout.")]


def parse_budget(ratio: str | None, budget: int | None, coverage: float | None = None, *, names: str) -> Budget:
    """Check --ratio, --budget and --coverage.

    Args:
        ratio, budget, coverage: what was given.
        names: the options that the command has, in words: "--ratio, --budget or --coverage".
    """
    given = {
        f"--{name} {value}": value
        for name, value in (("ratio", ratio), ("budget", budget), ("coverage", coverage))
        if value is not None
    }
    if not given:
        raise ValueError(f"give {names}")
    if len(given) > 1:
        raise ValueError(f"give {names}, only one of them; got {' and '.join(given)}")
    return Budget.parse(ratio, budget, coverage)


def parse_block(text: str) -> BlockSpec:
    """Parse --block."""
    if text.lower() == "none":
        return None
    if text.lower() == "scene":
        return "scene"
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"--block must be a number of frames, 'scene', or 'none' for the whole video; got {text!r}")
    return int(text)


def parse_fps(text: str | None, default: float = 1.0) -> float | None:
    """Parse --fps; None stands for all frames."""
    if text is None:
        return default
    if text.lower() == "all":
        return None
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"--fps must be a number of frames per second, or 'all'; got {text!r}") from None


def frame_limit(max_frames: int | None) -> int:
    """Return --max-frames, or its default."""
    from floc.encoders.load import MAX_FRAMES

    return MAX_FRAMES if max_frames is None else max_frames


def parse_time(text: str | None) -> float | None:
    """Parse a time in seconds, minutes:seconds or hours:minutes:seconds.

    >>> parse_time("90"), parse_time("1:30"), parse_time("1:02:30.5"), parse_time(None)
    (90.0, 90.0, 3750.5, None)
    """
    if text is None:
        return None
    try:
        *larger, seconds = (float(part) for part in text.split(":"))
    except ValueError:
        larger, seconds = [], math.nan
    if not (seconds >= 0 and len(larger) <= 2 and all(part >= 0 and part.is_integer() for part in larger)):
        raise ValueError(f"a time must be seconds, or like 1:30 or 1:02:30; got {text!r}")
    return seconds + sum(part * 60**power for power, part in enumerate(reversed(larger), 1))


def split_list(text: str) -> list[str]:
    """Split a list at its commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def check_unused(output: Path) -> Path:
    """Return a default output path; raise ValueError if the file exists. A default never overwrites a file."""
    if output.exists():
        raise ValueError(f"{output} exists already; name the file to write with -o")
    return output


def check_output(output: Path, source: Path, suffix: str | None = None) -> None:
    """Check, before any work is done, that a file can be written. Missing folders are created later.

    Args:
        output: the file to write.
        source: the input, which must not be overwritten.
        suffix: the suffix that the file must have.
    """
    if suffix is not None and output.suffix != suffix:
        raise ValueError(f"{output}: the output is a {suffix} file; name it {output.with_suffix(suffix)}")
    if output.exists() and source.exists() and output.samefile(source):
        raise ValueError(f"{output}: this would overwrite the input; name another file")
    if output.is_dir():
        raise ValueError(f"{output}: this is a folder; name a file")
    _check_writable(output.parent, output)


def check_folder(folder: Path) -> None:
    """Check, before any work is done, that files can be written to a folder. A missing folder is created later."""
    _check_writable(folder, folder)


def _check_writable(folder: Path, path: Path) -> None:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise ValueError(f"{path}: {existing} is a file; name a folder")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise OSError(f"{path}: cannot write to {existing} ({error.strerror}); name another folder") from None
