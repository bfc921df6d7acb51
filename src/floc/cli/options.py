"""Options that several commands share, how their values are parsed and checked, and how they read a video."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from floc._checks import parse_fraction, shorten
from floc.budget import Budget
from floc.cli.output import print_note, print_warning, show_progress

if TYPE_CHECKING:
    from floc.blocks import BlockSpec
    from floc.encoders.load import EncodedVideo
    from floc.families.processing import Limit, Rate

DEFAULT_RATIO = "1/8"
MAX_DIGITS = 9  # of a number of frames
MAX_NEW_FOLDERS = 100
MIN_SECONDS, MAX_SECONDS = 0.001, 1e9
Text = str | None
BUDGET, METHOD, VIDEO = "Budget", "Method", "Video"  # panels of the help


def complete_method(incomplete: str) -> list[str]:
    """Complete the name of a method."""
    from floc import methods

    return [name for name in methods.list_methods() if name.startswith(incomplete)]


def complete_encoder(incomplete: str) -> list[str]:
    """Complete the name of an encoder."""
    return [name for name in ("auto", "pixels", "mobilenet", "hf:") if name.startswith(incomplete)]


def option(
    metavar: str | None, text: str, panel: str | None = None, *names: str, default: Any = None, complete: Any = None
) -> Any:
    """Declare an option, as the default value of a parameter. A default of ... requires the option.

    "(default: ...)" at the end of the help `text` is dimmed; `complete` maps what was typed to names that begin so.
    """
    text = re.sub(r"\((default|floc): .*\)$", r"[dim]\g<0>[/]", text)
    return typer.Option(default, *names, metavar=metavar, help=text, rich_help_panel=panel, autocompletion=complete)


def flag(name: str, text: str, panel: str | None = None) -> Any:
    """Declare an option without a value."""
    return option(None, text, panel, name, default=False)


OUTPUT = ("--output", "-o")
RATIO = option("RATIO", "Share of the tokens to keep: 1/8 or 0.125.", BUDGET)
TOKEN_BUDGET = option("N", "Number of tokens to keep.", BUDGET)
COVERAGE = option("COSINE", "Keep the fewest tokens that reach this mean cosine.", BUDGET)
METHOD_NAME = option(
    "NAME", "A method, with options: longvu:threshold=0.8.", METHOD, default="floc", complete=complete_method
)
BLOCK = option(
    "FRAMES", "Select in blocks of so many frames, 'scene' or 'none' (all at once), without a horizon.", METHOD
)
HORIZON = option(
    "N", "Largest distance in frames to a representative, auto or none. (auto: 1 / (8 ratio), 4 to 16)", METHOD
)
FPS = option("N", "Frames per second, or 'all'. (default: 1; for a model, its processor's)", VIDEO)
MAX_FRAMES = option(
    "N", "Read at most N frames, evenly spaced, or 'all'. (default: 7200; for a model, its processor's)", VIDEO
)
FRAME_TOKENS = option("N", "Most tokens of a frame. (default: that of the model's processor)", VIDEO)
MORE_FRAMES = flag(
    "--more-frames", "Take as many frames as fit, and keep as many tokens as the model reads otherwise.", BUDGET
)
_ENCODERS = "pixels, mobilenet, hf:MODEL, or auto: the best installed. (default: auto)"
ENCODER = option("NAME", _ENCODERS, VIDEO, complete=complete_encoder)
REUSE = option(
    "LEVELS",
    "Reuse tokens of frames that differ by at most so many levels of 255; model encoders. (default: off)",
    VIDEO,
)
ENCODE = option("SHARE", "Share of the frames to encode: 1/2; model encoders, without --reuse. (default: all)", VIDEO)
DEVICE = option("DEVICE", "Device of the model: cpu, cuda:0. (default: a GPU if there is one)", VIDEO)
NO_FAST_VISION = flag("--no-fast-vision", "Run the vision encoder's attention as transformers does.", VIDEO)
AS_JSON = flag("--json", "Print the result as JSON to stdout.")


def parse_budget(ratio: str | None, budget: int | None, coverage: float | None = None, *, names: str) -> Budget:
    """Check --ratio, --budget and --coverage; `names` lists those that the command has, in words."""
    options = {"ratio": ratio, "budget": budget, "coverage": coverage}
    given = [f"--{name} {shorten(value)}" for name, value in options.items() if value is not None]
    if not given:
        raise ValueError(f"give {names}")
    if len(given) > 1:
        raise ValueError(f"give {names}, only one of them; got {' and '.join(given)}")
    return Budget.parse(ratio, budget, coverage)


def parse_block(text: str | None) -> dict[str, BlockSpec]:
    """Parse --block; return it as an option of a method, or no option if it was not given."""
    if text is None:
        return {}
    if text.lower() in ("none", "scene"):
        return {"block": "scene" if text.lower() == "scene" else None}
    expected = "a number of frames, at least 1, 'scene', or 'none' for the whole video"
    return {"block": _parse_count("block", text, 1, expected)}


def parse_horizon(text: str | None) -> dict[str, int | Literal["auto"] | None]:
    """Parse --horizon; return it as an option of a method, or no option if it was not given."""
    if text is None:
        return {}
    if text.lower() in ("none", "auto"):
        return {"horizon": None if text.lower() == "none" else "auto"}
    return {"horizon": _parse_count("horizon", text, 0, "a number of frames, at least 0, 'auto' or 'none'")}


def _parse_count(name: str, text: str, least: int, expected: str) -> int:
    """Parse a number of frames; raise ValueError that says what is expected."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and int(text) >= least):
        raise ValueError(f"--{name} must be {expected}; got {shorten(text)}")
    return int(text)


def join_method_options(in_method: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Join the options in `--method longvu:threshold=0.8` with other options; raise ValueError if both have one."""
    for name in in_method.keys() & given.keys():
        raise ValueError(f"--{name} was given twice: on its own and in --method; remove one of them")
    return {**in_method, **given}


def parse_fps(text: str | None) -> Rate:
    """Parse --fps; None if it was not given."""
    if text is None or text.lower() == "all":
        return None if text is None else "all"
    try:
        return float(parse_fraction(text))
    except ValueError:
        raise ValueError(f"--fps must be a number of frames per second, or 'all'; got {shorten(text)}") from None


def check_seconds(**given: float | None) -> None:
    """Check options that are numbers of seconds; None was not given."""
    for name, value in given.items():
        if value is not None and not MIN_SECONDS <= value <= MAX_SECONDS:
            limits = f"{MIN_SECONDS:g} to {MAX_SECONDS:.0e}"
            raise ValueError(f"--{name.replace('_', '-')} must be a number of seconds, {limits}; got {value:g}")


def refuse_options(before: str, after: str, **values: object) -> None:
    """Raise ValueError with two parts of a message around the name of the first option that was given, if any was."""
    for name, value in values.items():
        if value is not None and value is not False:  # 0 is given
            raise ValueError(f"{before} --{name.replace('_', '-')}{after}")


def parse_limit(text: str | None) -> Limit:
    """Parse --max-frames; None if it was not given."""
    if text is None or text.lower() == "all":
        return None if text is None else "all"
    return _parse_count("max-frames", text, 1, "a whole number, at least 1, or 'all'")


def encode_video(
    source: Path, fps: Text, max_frames: Text, encoder: Text, device: Text, **settings: bool
) -> EncodedVideo:
    """Read and encode a video with `load_tokens`; print the encoder that "auto" selects, and warnings."""
    from floc.encoders.load import load_tokens

    sampling: dict[str, Any] = {"fps": parse_fps(fps), "max_frames": parse_limit(max_frames)}
    with show_progress(f"reading {source.name}") as update:
        video = load_tokens(source, **sampling, encoder=encoder or "auto", device=device, progress=update, **settings)
    if encoder in (None, "auto"):
        print_note(f"encoder: {video.encoder.name}")
    print_warning(*video.video.warnings)
    return video


def split_list(text: str) -> list[str]:
    """Split a list at its commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def check_input(path: Path) -> None:
    """Raise if a file does not exist, or is a folder, a pipe or a device, which would hang."""
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder; name a file")
    if not path.exists():
        is_address, is_live = (
            re.match(scheme, str(path)) for scheme in (r"[a-zA-Z][\w+.-]+:/", "(?i)(rtsps?|https?):/")
        )
        command = "floc stream" if is_live else "floc ingest"
        hint = f"; {command} reads addresses" if is_address else ""
        raise FileNotFoundError(f"{path}: no such file{hint}")
    if not path.is_file():
        raise ValueError(f"{path}: not a regular file; save its content to one first")


def check_unused(output: Path) -> Path:
    """Return a default output path; raise ValueError if the file exists. A default never overwrites a file."""
    if output.exists():
        raise ValueError(f"{output} exists already; name the file to write with -o")
    return output


def check_output(output: Path | None, source: Path, suffix: str | None = None) -> None:
    """Check, before any work is done, that a file, if one is given, can be written, and is not the `source`.

    Missing folders are created later.
    """
    from floc._atomic import check_writable

    if output is None:
        return
    _refuse_address(output)
    if output.is_dir():
        raise ValueError(f"{output}: this is a folder; name a file")
    if suffix is not None and output.suffix != suffix:
        raise ValueError(f"{output}: the output is a {suffix} file; name it {output.with_suffix(suffix)}")
    if output.exists() and source.exists() and output.samefile(source):
        raise ValueError(f"{output}: this would overwrite the input; name another file")
    check_writable(check_folder(output.parent, output) / output.name)


def _refuse_address(path: Path) -> None:
    if re.match(r"[a-zA-Z][\w+.-]+:/", str(path)):
        raise ValueError(f"{path}: an address; name a file or folder on this machine")


def check_folder(folder: Path, path: Path | None = None) -> Path:
    """Check, before any work is done, that files can be written to a folder, or else raise an error about `path`.

    A missing folder is created later; returns the nearest one that exists.
    """
    path = path or folder
    _refuse_address(path)
    depth, existing = next(item for item in enumerate((folder, *folder.absolute().parents)) if item[1].exists())
    if depth > MAX_NEW_FOLDERS:
        raise ValueError(f"{path}: {depth} of its folders are missing; create them first, or name another")
    if not existing.is_dir():
        raise ValueError(f"{path}: {existing} is a file; name a folder")
    try:
        with tempfile.TemporaryFile(dir=existing):
            return existing
    except OSError as error:
        raise OSError(f"{path}: cannot write to {existing} ({error.strerror}); name another folder") from None
