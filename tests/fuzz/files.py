"""Mutated files: kept tokens, `.floc`, stream states, token files, rows and files of a store."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from tests.fuzz import mutations, oracles
from tests.fuzz.outcomes import REFUSED, VALID, Outcome, Refused, judge_error, require

NAME = "files"
BATCH = 100
CASES = 10_000
SHARES = {"kept tokens": 30, "stream state": 28, ".floc": 24, "token file": 6, "store rows": 8, "store files": 4}
SHAPE = (40, 3, 4, 16)
HASHED = (  # the columns of a row of a store that its hash covers, in this order, before the binary ones
    "video piece attempt row start_s end_s first slices last kept bytes shape frames coverage written_s dtype "
    "positions order gains times_s last_s"
)


def prepare(folder: Path) -> None:
    """Write the valid files."""
    import floc
    from floc import files
    from tests.archive.builders import make_piece

    rng = np.random.default_rng(0)
    tokens = (rng.standard_normal(SHAPE) + 3 * rng.standard_normal((1, *SHAPE[1:]))).astype(np.float32)
    kept = floc.compress(tokens, ratio="1/8")
    files.write_kept(kept, folder / "a.kept.safetensors")
    times = np.arange(SHAPE[0]) / 2
    half = floc.compress(torch.from_numpy(tokens).half(), budget=9, block=8, dedupe=1)
    files.write_kept(half, folder / "b.kept.safetensors", source="a.mp4", times_s=times, made_from={"duration_s": 20.0})
    settings: list[dict[str, Any]] = [
        {"ratio": "1/8", "block": 8},
        {"budget": 20, "block": 8, "half_life_s": 9.0},
        {"budget": 30, "block": "scene"},
        {"ratio": "1/4", "block": "scene", "metric": "gaussian"},
        {"budget": 12, "block": 4, "dim": 8},
    ]
    for number, options in enumerate(settings):
        stream = floc.Stream(**options)
        for t in range(SHAPE[0] - 3 * number):
            stream.push(torch.from_numpy(tokens[t]) if number % 2 else tokens[t], float(t) if number != 2 else None)
        stream.note["read_s"] = 3.0
        stream.save(folder / f"{number}.state")
        files.write_kept(stream.kept(), folder / f"{number}.kept.safetensors")
    make_piece(25).save(folder / "a.floc")
    make_piece(12, layers=2, dtype=torch.bfloat16, frames_per_slice=2).save(folder / "b.floc")
    make_piece(5, dtype=torch.float32, kept=30).save(folder / "c.floc")
    np.save(folder / "a.npy", tokens)
    np.save(folder / "b.npy", np.asfortranarray(tokens[:, 0].astype(np.float16)))
    from safetensors.numpy import save_file

    save_file({"tokens": tokens, "other": tokens[0]}, folder / "a.tokens.safetensors")
    write_store(str(folder / "store"))


def write_store(path: str) -> None:
    """Write a store with three videos."""
    import floc
    from tests.archive.builders import add_video, make_piece, make_pieces

    store = floc.Store(path, create=True)
    add_video(store, make_pieces(2), "/films/long.mp4")
    add_video(store, [make_piece(12, seed=3)], "/films/short.mp4")
    add_video(store, [make_piece(12, seed=4, layers=1)], "/films/deep.mp4")
    _use_store(Path(path))


def choose_format(case: int) -> str:
    """Return the format of a case; a hundred cases in a row have all formats by their shares."""
    place = case * 37 % 100
    for name, share in SHARES.items():
        if place < share:
            return name
        place -= share
    raise AssertionError


def run(folder: Path, seed: int, case: int) -> Outcome:
    """Run one case."""
    rng = Random(f"files {seed} {case}")
    form = choose_format(case)
    work = folder / f"case-{case}"
    work.mkdir()
    what, path = form, work
    try:
        if form in ("store rows", "store files"):
            change = _change_rows if form == "store rows" else _change_files
            path = work / "store"
            what = f"{form}: {change(folder / 'store', path, rng)}"
            _use_store(path)
        else:
            sample, path, change_text = _write_mutant(folder, work, form, rng)
            what = f"{sample.name}: {change_text}"
            _use(path, sample)
        outcome = Outcome(VALID)
    except BaseException as error:
        outcome = judge_error(error, mentions=path.name)
    shutil.rmtree(work, ignore_errors=True)
    return Outcome(outcome.verdict, outcome.reason, outcome.place, what[:200])


def _write_mutant(folder: Path, work: Path, form: str, rng: Random) -> tuple[Path, Path, str]:
    endings = {
        "kept tokens": ".kept.safetensors",
        "stream state": ".state",
        ".floc": ".floc",
        "token file": (".npy", ".tokens.safetensors"),
    }
    sample = rng.choice(sorted(path for path in folder.iterdir() if path.name.endswith(endings[form])))
    data = sample.read_bytes()
    if sample.suffix == ".npy":
        changed, what = _mutate_npy(data, rng)
    else:
        changed, what = mutations.mutate_safetensors(data, rng)
    path = work / sample.name
    path.write_bytes(changed)
    return sample, path, what


def _mutate_npy(data: bytes, rng: Random) -> tuple[bytes, str]:
    if rng.random() < 0.4:
        return mutations.mutate_bytes(data, rng), "bytes"
    length = int.from_bytes(data[8:10], "little")
    header = eval(data[10 : 10 + length])
    name = rng.choice(list(header))
    odd = {
        "descr": ("<f8", ">f4", "<f2", "|O", "<c8", "|V16", "<i4", "|S4", "<M8[s]", "<f16", [("a", "<f4")], "", 7),
        "fortran_order": (True, False, None, 1, "x"),
        "shape": (
            (),
            (0,),
            (-1, 3, 4, 16),
            (2**40, 3, 4, 16),
            (40, 12, 16),
            (1920, 16),
            (2**63, 2),
            "x",
            (40.0, 2),
            [4],
        ),
    }
    header[name] = rng.choice(odd[name])
    text = repr(header).encode()
    if rng.random() < 0.1:
        text = rng.choice((b"(" * 5000, b"{" * 60000, b"9" * 5000, b"{'descr': '<f4'" * 900))
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return data[:8] + (len(text) % 65536).to_bytes(2, "little") + text + data[10 + length :], f"{name} = {header[name]}"


def _use(path: Path, sample: Path) -> None:
    """Read a file as users do, and check the result."""
    import floc
    from floc import files

    if sample.name.endswith(".kept.safetensors"):
        kept = files.read_kept(path)
        oracles.check_kept(kept)
        files.write_kept(kept, path.with_name("again.safetensors"))
        oracles.check_kept(files.read_kept(path.with_name("again.safetensors")))
        path.with_name("again.safetensors").unlink()
    elif sample.suffix == ".state":
        _continue_stream(floc.Stream.load(path), path)
    elif sample.suffix == ".floc":
        captured = floc.load(path)
        oracles.check_captured(captured)
        if captured.nested:
            oracles.check_captured(captured.at(budget=max(1, len(captured) // 2)))
        captured.save(path.with_name("again.floc"))
        oracles.check_captured(floc.load(path.with_name("again.floc")))
        path.with_name("again.floc").unlink()
    else:
        tokens = files.read_tokens(path)
        shape = tuple(tokens.shape)
        require(tokens.nbytes <= path.stat().st_size, f"{tokens.nbytes} bytes of a file of {path.stat().st_size}")
        try:
            kept = floc.compress(tokens, budget=3)
        except (ValueError, TypeError, MemoryError) as error:
            if judge_error(error).verdict != REFUSED:
                raise
            raise Refused(str(error)) from None  # the array was read; it has no name here
        oracles.check_kept(kept)
        require(kept.n == int(np.prod(shape[:-1])), f"shape {kept.shape} of {shape}")


def _continue_stream(stream: Any, path: Path) -> None:
    frames = stream.frames
    require(type(frames) is int and frames >= 0, f"{frames!r:.50} frames")
    if stream._is_closed is True:
        oracles.check_kept(stream.kept())
        return
    first = stream.kept() if frames else None
    shape, last = SHAPE[1:], 0.0
    if first is not None:
        oracles.check_kept(first)
        require(first.shape[0] == frames, f"{first.shape[0]} frames of {frames}")
        assert first.span_s is not None
        shape, last = (*first.shape[1:], first.features.shape[1]), first.span_s[1]
        shape = (*shape[:2], stream._waiting.shape[-1]) if stream._waiting is not None else shape
    rng = np.random.default_rng(1)
    is_timed = stream._is_timed
    for number in range(2):
        pushed: Any = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        if stream._waiting is not None:
            pushed = pushed.to(stream._waiting.dtype)
        if stream._numpy_dtype is not None:
            pushed = pushed.float().numpy().astype(stream._numpy_dtype)
        time_s = np.nextafter(last, np.inf) + (number + 1) * max(1.0, abs(last) * 1e-6) if is_timed else None
        stream.push(pushed, None if time_s is None else float(time_s))
    kept = stream.kept()
    oracles.check_kept(kept)
    require(kept.shape[0] == frames + 2, f"{kept.shape[0]} frames of {frames + 2}")
    again = path.with_name("again.state")
    stream.save(again)
    type(stream).load(again)
    again.unlink()


def _hash_row(row: dict[str, Any], is_video: bool) -> str:
    """Hash a row as the store does: a stranger who changes a row changes its hash, too."""
    if is_video:
        values = {name: value for name, value in row.items() if name != "sha256"}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    digest = hashlib.sha256(repr([row[name] for name in HASHED.split()]).encode())
    for data in (row["features"], *row["deep"]):
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _change_rows(source: Path, store: Path, rng: Random) -> str:
    """Copy a store with a value of a row changed."""
    import lance
    import pyarrow as pa

    store.mkdir()
    is_video = rng.random() < 0.5
    what = ""
    for table in ("videos.lance", "segments.lance"):
        if (table == "videos.lance") != is_video:
            shutil.copytree(source / table, store / table)
            continue
        data = lance.dataset(str(source / table)).to_table()
        rows = data.to_pylist()
        row = rng.choice(rows)
        column = rng.choice([name for name in data.schema.names if name != "sha256"])
        for _ in range(20):
            value = _make_odd(row[column], data.schema.field(column).type, rng)
            try:
                pa.array([value], data.schema.field(column).type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                continue
            row[column] = value
            break
        what = f"{table} {column} = {row[column]!r:.50}"
        row = pa.Table.from_pylist([row], schema=data.schema).to_pylist()[0]
        rows = [row if other["sha256"] == row["sha256"] else other for other in rows]
        try:
            row["sha256"] = _hash_row(row, is_video)
        except (TypeError, ValueError):
            what += " without a hash"
        lance.write_dataset(pa.Table.from_pylist(rows, schema=data.schema), str(store / table))
    return what


def _make_odd(value: Any, kind: Any, rng: Random) -> Any:
    """Return another value for a column."""
    import pyarrow as pa

    if rng.random() < 0.1:
        return None
    if pa.types.is_string(kind) and isinstance(value, str) and value.startswith("{"):
        choices = [mutations.mutate_json(json.loads(value), rng)[0] if value != "{}" else "[]", mutations.NESTED, "{"]
        return rng.choice([*choices[:1] * 5, *choices[1:]])
    if pa.types.is_struct(kind):
        name = rng.choice(list(value))
        return {**value, name: _make_odd(value[name], kind.field(name).type, rng)}
    if pa.types.is_list(kind) and value and rng.random() < 0.8:
        items = list(value)
        at = rng.randrange(len(items))
        items[at] = _make_odd(items[at], kind.value_type, rng)
        return rng.choice((items, items, items[:-1], items + items[-1:], items[::-1], [], items * 50))
    if isinstance(value, bytes):
        return mutations.mutate_bytes(value, rng)
    if isinstance(value, int | float) and rng.random() < 0.3:
        return rng.choice((value + 1, value - 1, -value))
    odd = [odd for odd in mutations.ODD_VALUES if not isinstance(odd, str) or "\ud800" not in odd]
    return rng.choice(odd)


def _change_files(source: Path, store: Path, rng: Random) -> str:
    """Copy a store with the bytes of one of its files changed."""
    shutil.copytree(source, store)
    path = rng.choice(sorted(path for path in store.rglob("*") if path.is_file()))
    if rng.random() < 0.1:
        path.unlink()
        return f"{path.relative_to(store)} deleted"
    path.write_bytes(mutations.mutate_bytes(path.read_bytes(), rng))
    return f"{path.relative_to(store)} bytes"


def _use_store(path: Path) -> None:
    """Open a store as users do. A damaged video is reported; the others can be opened."""
    import floc

    store = floc.Store(path)
    videos = store.videos()
    require(len({video.id for video in videos}) == len(videos), "a video is listed twice")
    problems = [str(problem) for problem in store.check()]
    require(all(problems), "a problem without a text")
    refused = [error for video in videos if (error := _open_video(store, video))]
    try:
        results = store.search(torch.ones(2, 8), 5)
        require(all(np.isfinite(result.similarity) for result in results), "a similarity is not finite")
    except (ValueError, OSError) as error:
        if judge_error(error).verdict != REFUSED:
            raise
    if refused or problems:
        raise Refused("; ".join([*refused, *problems]))


def _open_video(store: Any, video: Any) -> str:
    """Open a video, whole and in part; return the error if it is refused."""
    try:
        oracles.check_captured(store.open(video))
        store.open(video, start_s=0, end_s=5)
    except (ValueError, OSError) as error:
        if judge_error(error).verdict != REFUSED:
            raise
        require(video.id in str(error) or store.path in str(error), f"the error names no video: {error}")
        return str(error)
    return ""


def warm_up(folder: Path) -> None:
    """Use the valid files, so that children find modules and compiled code loaded; not Lance, which starts threads."""
    for path in sorted(folder.iterdir()):
        if path.is_file():
            _use(path, path)
