"""Command lines: every command with every option, odd values, missing files, special files and odd names."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import oracles
from tests.fuzz.outcomes import VALID, Outcome, judge_error, require

NAME = "cli"
BATCH = 1  # a command line ends its process
CASES = 500
SECRET = "hunter2"  # of an address; must never be printed
# a command line that works, for every command
BASES: dict[str, list[str]] = {
    "compress": ["tokens.npy", "--ratio", "1/8", "--output", "out.safetensors"],
    "compare": [
        "clip.mp4",
        "--output",
        "out.html",
        "--encoder",
        "pixels",
        "--methods",
        "floc,random",
        "--ratio",
        "1/8",
    ],
    "ask": ["a.floc", "What happens?", "--model", "no-such-model"],
    "stream": ["clip.ts", "--ratio", "1/8", "--encoder", "pixels", "--output", "segments", "--patience", "0.1"],
    "ingest": ["clips", "--store", "new", "--encoder", "pixels", "--workers", "1"],
    "plan": ["clip.mp4", "--model", "no-such-model"],
    "methods": [],
    "eval": ["--dry-run"],
    "store list": ["store"],
    "store search": ["store", "image.png"],
    "store check": ["store"],
    "store compact": ["store"],
    "store index": ["store"],
    "store remove": ["store", "short.mp4"],
    "store export": ["store", "short.mp4", "--output", "out.floc"],
    "store import": ["store", "a.floc"],
}
ESCAPES = "\x1b[31mred\x1b[0m"
NAMES = (  # made in every folder, as copies of the tokens or the clip
    *(
        f"{ESCAPES}.npy",
        f"{ESCAPES}.mp4",
        "two\nlines.npy",
        "[bold]markup.npy",
        os.fsdecode(b"\xff\xfe.npy"),
        "-.npy",
    ),
    *("a b;$(touch x).npy", "\u202eypn.npy", "%s%n.mp4", "l" * 240 + ".npy"),
)
SPECIAL = ("fifo", "fifo.mp4", "fifo.npy", "folder", "folder.mp4", "empty.mp4", "empty.npy", "empty.floc", "broken.mp4")
SOURCES = (
    *("tokens.npy", "clip.mp4", "clip.ts", "a.floc", "a.kept.safetensors", "0.state", "store", "clips", "image.png"),
    *(*NAMES, *SPECIAL, "missing.npy", "missing.mp4", "", "-", "--", ".", "..", "/", "~", "/dev/null", "/dev/zero"),
    *(f"rtsp://admin:{SECRET}@127.0.0.1:9/x", f"http://u:{SECRET}@127.0.0.1:9/x?token={SECRET}", "ftp://127.0.0.1/x"),
    *(f"rtsp://u:pa{quote}{SECRET}@127.0.0.1:9/{'x' * 80}" for quote in ("'", '"', " ", "\n", ";", "'\"")),
    *("y" * 100_000, "pass" * 25_000, "a:/'" * 25_000, "long"),
    *("file:///etc/passwd", "concat:clip.ts|clip.ts", "x" * 5000, "/dev/video99", "\x1b[2J", "nul\tname", "a/b/c.mp4"),
)
ODD = (
    *("", "0", "-1", "1", "2", "1/8", "1/0", "0/0", "1/8/2", "0.5", "1.5", "1e-320", "1e-310", "1e308", "1e309", "nan"),
    *("inf", "-inf", "1e99999999", "1e-99999999", "9" * 5000, "2147483648", "9223372036854775808", "0x10", "1_000"),
    *("all", "none", "scene", "auto", "cpu", "cuda", "cuda:99", "meta", "gpu", "torch", "reference", "ray", "pixels"),
    *(
        "mobilenet",
        "hf:",
        "hf:no/such",
        "hf:../../x",
        "floc",
        "floc:detail=1",
        "floc:detail=nan",
        "floc:",
        ":",
        "floc:x=1",
    ),
    *("9" * 400, "floc:block=" + "-" * 5000 + "1", "floc:block=" + "(" * 5000, f"a://u:pa'{SECRET}@{'x' * 60}"),
    *("longvu:threshold=1e99999999", "random:seed=-1", "floc,floc", ",", "x" * 5000, ESCAPES, "\x1b]0;t\x07", "\u0663"),
    *(os.fsdecode(b"\xff"), "a\nb", "1:30", "1:2:3:4", "-1:00", "--", "-", "tokens", "null", "{}", "[]", "[bold]x[/]"),
)
OUTPUTS = (
    *(
        "out.safetensors",
        "out.html",
        "out.floc",
        "segments",
        "tokens.npy",
        "clip.mp4",
        "folder",
        "a/b/c.safetensors",
        ".",
    ),
    *(
        "out.txt",
        "",
        "/",
        "/proc/x.safetensors",
        "/dev/null",
        "fifo",
        "clip.mp4/x.safetensors",
        f"{ESCAPES}.safetensors",
    ),
    *(f"rtsp://u:pa'{SECRET}@127.0.0.1:9/x.safetensors", f"http://h/x?sig='{SECRET}", "a/" * 2000 + "x.safetensors"),
    *("o" * 240 + ".safetensors", "o" * 300 + ".safetensors", "o" * 5000, "two\nlines.safetensors", "-.safetensors"),
)
PATHS = {"source", "sources", "video", "image", "files", "store", "--store", "--output", "--state", "--plots"}
HOME_FOLDERS = (".cache", ".config", ".local", ".triton")  # of libraries
PYTHON_WORDS = re.compile(
    r"has no attribute|not supported between|to unpack|keyword argument|NoneType|positional argument"
    r"|out of bounds|unexpected \w+(Error|Exception|Warning)|not subscriptable|not iterable|invalid literal"
    r"|object is not|argument must be|Errno|<class |numpy\.|torch\."
)


def prepare(folder: Path) -> None:
    """Write the files that the command lines name."""
    import numpy as np

    from tests.fuzz import clips, files

    (folder / "made").mkdir()
    files.prepare(folder / "made")
    start = folder / "start"
    start.mkdir()
    for name in ("a.floc", "a.kept.safetensors", "0.state"):
        shutil.copy(folder / "made" / name, start)
    shutil.copytree(folder / "made" / "store", start / "store")
    np.save(start / "tokens.npy", np.random.default_rng(0).standard_normal((20, 2, 3, 8)).astype(np.float32))
    clips._encode(start / "clip.mp4", clips.SIZE, codec="libx264")
    clips._encode(start / "clip.ts", clips.SIZE, codec="mpeg2video")
    (start / "clips").mkdir()
    shutil.copy(start / "clip.mp4", start / "clips")
    _fill_store(start / "long")
    from PIL import Image

    Image.new("RGB", (32, 32)).save(start / "image.png")
    for name in NAMES:
        shutil.copy(start / ("clip.mp4" if name.endswith(".mp4") else "tokens.npy"), start / name)
    for name in SPECIAL:
        if name.startswith("empty"):
            (start / name).touch()
        elif name.startswith("folder"):
            (start / name).mkdir()
        elif name.startswith("broken"):
            (start / name).write_bytes((start / "clip.mp4").read_bytes()[:700])


def _fill_store(path: Path) -> None:
    """Write a store whose texts are as long as allowed, and are not what they should be."""
    import floc
    from floc.archive.schema import StoredVideo
    from floc.captured.identity import Identity

    model = Identity("a", "b", None, "c", 8, [])
    texts = ["u" * 9990, "pass" * 2490, "a:/'" * 2490, "two\nlines\t\u061c" * 700, "rtsp://u:p'@h/x " * 600]
    values = {"content": "", "size": 1, "modified_s": 0.0, "status": "failed", "model": model, "options": {}}
    videos = [
        StoredVideo(id=f"{number:016x}", uri=f"{text}{number}", error=text, encoder=text, **values)
        for number, text in enumerate(texts * 12)
    ]
    floc.Store(path, create=True).commit([], videos)


def warm_up(folder: Path) -> None:
    """Import what commands need."""
    import numpy as np

    import floc
    from floc import encoders, files, video  # noqa: F401

    list_targets()
    floc.compress(np.random.default_rng(0).standard_normal((20, 2, 3, 8)).astype(np.float32), ratio="1/8")
    encoders.get("pixels")
    for _ in video.read(folder / "start" / "clip.mp4"):
        pass


@cache
def list_targets() -> list[tuple[str, Any]]:
    """Return every command with each of its parameters."""
    from typer.main import get_command

    from floc.cli import application

    app = application.load_app() if hasattr(application, "load_app") else application.app
    if not hasattr(application, "load_app"):
        import floc.cli  # noqa: F401
    targets: list[tuple[str, Any]] = []
    pending: list[tuple[str, Any]] = [("", get_command(app))]
    while pending:
        name, command = pending.pop(0)
        if hasattr(command, "commands"):
            pending += [(f"{name} {child}".strip(), node) for child, node in command.commands.items()]
        else:
            targets += [(name, param) for param in command.params]
    return targets


def choose_format(case: int) -> str:
    """Return the command of a case."""
    targets = list_targets()
    return f"floc {targets[case % len(targets)][0]}"


def make_arguments(seed: int, case: int) -> list[str]:
    """Return the command line of a case."""
    rng = Random(f"cli {seed} {case}")
    targets = list_targets()
    command, param = targets[case % len(targets)]
    arguments = list(BASES.get(command, []))
    others = [other for name, other in targets if name == command and other.param_type_name == "option"]
    for chosen in [param, *rng.sample(others, min(len(others), rng.choice((0, 0, 1, 2))))]:
        is_argument = chosen.param_type_name == "argument"
        name = chosen.name if is_argument else chosen.opts[0]
        if getattr(chosen, "is_flag", False):
            arguments.append(name)
            continue
        choices = ODD
        if name in PATHS:
            choices = OUTPUTS if name in ("--output", "--state", "--plots") else SOURCES
        value = rng.choice(choices)
        if is_argument:
            place = (
                1
                if chosen.name in ("questions", "image", "files") or (command, name) == ("store remove", "video")
                else 0
            )
            if command == "store export" and chosen.name == "video":
                place = 1
            arguments[place : place + 1] = [value]
        elif name in arguments:
            arguments[arguments.index(name) + 1] = value
        else:
            arguments += [name, value]
    if rng.random() < 0.05:
        rng.shuffle(arguments)
    if rng.random() < 0.03:
        arguments.append(rng.choice(("--nothing", "extra", "--ratio", "-o", "--help", "--version")))
    return [*command.split(), *arguments]


def run(folder: Path, seed: int, case: int) -> Outcome:
    """Run one case."""
    arguments = make_arguments(seed, case)
    work = folder / f"case-{case}"
    shutil.copytree(folder / "start", work)
    for name in SPECIAL:
        if name.startswith("fifo"):
            os.mkfifo(work / name)
    what = " ".join(ascii(argument)[1:-1][:60] or "''" for argument in arguments)
    try:
        code, text = _call(arguments, work)
        _check(code, text, arguments, work)
        outcome = Outcome(VALID) if code == 0 else Outcome("refused", text[-200:])
    except BaseException as error:
        outcome = judge_error(error)
    shutil.rmtree(work, ignore_errors=True)
    return Outcome(outcome.verdict, outcome.reason, outcome.place, f"floc {what}"[:400])


def _call(arguments: list[str], work: Path) -> tuple[Any, str]:
    """Run a command line in this process, and return its exit code and what it printed."""
    os.chdir(work)
    log = work.with_suffix(".log")
    saved = os.dup(1), os.dup(2), os.dup(0)
    output = os.open(log, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, handle in ((1, output), (2, output), (0, nothing)):
        os.dup2(handle, number)
    os.environ |= {"HOME": str(work), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    sys.argv = ["floc", *arguments]
    code: Any = 0
    try:
        runpy.run_module("floc", run_name="__main__", alter_sys=True)
    except SystemExit as stopped:
        code = stopped.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for handle, number in zip(saved, (1, 2, 0), strict=True):
            os.dup2(handle, number)
        text = log.read_bytes().decode(errors="replace")
        log.unlink()
    return code, text


def _check(code: Any, text: str, arguments: list[str], work: Path) -> None:
    """Check what a command printed and left behind."""
    tail = text[-300:]
    require(code in (0, 1, 2), f"exit code {code!r}: {tail}")
    require("\x1b" not in text and "\x07" not in text, f"control characters are printed: {tail!r}")
    require(not re.search("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", text), f"text is reversed: {tail!r}")
    require(SECRET not in text, f"a secret is printed: {tail!r}")
    is_verbose = "--verbose" in arguments or "-v" in arguments
    if not is_verbose:
        require("Traceback (most" not in text, f"a traceback is printed: {tail}")
        require(code == 0 or not PYTHON_WORDS.search(text), f"Python's words are printed: {tail}")
    require(code == 0 or text.strip(), f"exit code {code} without a message")
    if code == 2 and not is_verbose:
        last = text.strip().splitlines()[-1]
        require(last.startswith("floc: ") or "Error" in text, f"the last line is no error: {tail}")
    left = [path.name for path in work.iterdir() if path.name.startswith(".") and path.name not in HOME_FOLDERS]
    require(not left, f"temporary files are left: {left}")
    if code == 0 and (work / "out.safetensors").is_file():
        from floc import files

        oracles.check_kept(files.read_kept(work / "out.safetensors"))
    if code == 0 and arguments[0] == "store" and (work / "store").is_dir():
        import floc

        require(not floc.Store(work / "store").check(), "the store has problems afterwards")
