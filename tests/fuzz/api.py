"""Arguments of public functions, drawn with hypothesis: shapes, dtypes, layouts, odd scalars."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import oracles
from tests.fuzz.arrays import arrays, counts, make_array, matrices, mostly, numbers, odd
from tests.fuzz.outcomes import VALID, Outcome, judge_error, require

NAME = "api"
BATCH = 50
CASES = 2_000
BLOCK = 100  # cases that one run of hypothesis draws
FORMATS = (
    "compress",
    "select",
    "Stream",
    "Kept.at",
    "Budget",
    "scenes",
    "methods",
    "read_tokens",
    "video.read",
    "Store",
)
METHODS = [
    "cdpruner",
    "dtd",
    "dycoke",
    "evs",
    "fastvid",
    "flashvid",
    "floc",
    "floc-paper",
    "frame_uniform",
    "framefusion",
    "holitom",
    "kmeans",
    "kmedoids",
    "longvu",
    "mmtok",
    "pooling",
    "prunevid",
    "random",
    "scissor",
    "scope",
    "spectral",
    "sttm",
    "ts_llava",
    "vcast",
    "vidcom2",
    "visionzip",
    "divprune",
    "nothing",
]

budgets = st.one_of(
    st.fixed_dictionaries({"ratio": st.sampled_from(("1/8", 0.25, "1/2", 1, 0.001))}),
    st.fixed_dictionaries({"budget": st.integers(1, 40)}),
    st.fixed_dictionaries({"coverage": st.floats(0.1, 1)}),
    st.fixed_dictionaries({"ratio": st.floats(0, 1, exclude_min=True)}),
    st.dictionaries(st.sampled_from(("ratio", "budget", "coverage")), odd, min_size=1, max_size=2),
)
floc_options = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"block": st.integers(1, 40) | st.sampled_from((None, "scene", [0, 1]))}),
    st.fixed_dictionaries({"dedupe": st.floats(1, 9), "detail": st.floats(1, 9)}),
    st.fixed_dictionaries(
        {"metric": st.sampled_from(("cosine", "gaussian")), "backend": st.sampled_from(("cpu", "torch", "reference"))}
    ),
    st.dictionaries(
        st.sampled_from(("block", "dedupe", "detail", "metric", "backend", "progress", "dim", "nothing")),
        st.one_of(odd, st.sampled_from(("cpu", "torch", "reference", "gpu", "cosine", "gaussian", 4, 1, [0, 3, 5]))),
        max_size=2,
    ),
)
stream_options = (
    st.just({})
    | st.fixed_dictionaries({"block": st.integers(1, 9)})
    | st.dictionaries(
        st.sampled_from(("block", "dedupe", "detail", "metric", "half_life_s", "dim", "backend")),
        st.one_of(odd, st.sampled_from(("scene", 4, 8, 2.0, 1.0, "gaussian", "cpu", "torch"))),
        max_size=2,
    )
)
names = st.sampled_from(
    ("1/4", "1/0", "1e-99999999", "", "tiny", "short.mp4", "%", "'; --", "\x1b[2J", "\ud800")
) | st.text(max_size=5)
CASE_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "compress": st.tuples(arrays, budgets, floc_options),
    "select": st.tuples(
        matrices,
        mostly(st.integers(1, 9)),
        mostly(st.none() | counts, arrays),
        mostly(st.sampled_from(("auto", "cpu", "torch", "reference"))),
    ),
    "Stream": st.tuples(
        budgets, stream_options, arrays, mostly(st.just([]), st.lists(st.none() | odd | st.floats(0, 9), max_size=4))
    ),
    "Kept.at": st.tuples(arrays, floc_options, budgets),
    "Budget": st.tuples(odd, odd, odd, odd),
    "scenes": st.tuples(arrays, mostly(st.integers(1, 9)), mostly(st.integers(17, 70))),
    "methods": st.tuples(
        arrays, budgets, st.sampled_from(METHODS), mostly(st.none(), st.tuples(st.integers(0, 9), odd))
    ),
    "read_tokens": st.tuples(arrays, odd),
    "video.read": st.tuples(
        mostly(st.sampled_from((1.0, None, 3, 1000.0))),
        mostly(st.sampled_from((None, 5, 7200))),
        mostly(st.sampled_from((1, 16))),
        mostly(st.none() | st.integers(1, 100)),
        mostly(st.floats(0, 2)),
        mostly(st.floats(2, 5)),
    ),
    "Store": st.tuples(
        st.sampled_from(("open", "find", "search", "compact", "remove")),
        mostly(st.none() | st.floats(0, 5), numbers),
        mostly(st.none() | st.floats(5, 12), numbers),
        mostly(st.none(), names),
        mostly(st.none(), numbers),
        arrays,
    ),
}


@lru_cache(maxsize=4)
def draw_block(form: str, seed_number: int, block: int) -> list[Any]:
    """Draw the inputs of a block of cases, without the first that hypothesis tries, which is the simplest."""
    drawn: list[Any] = []

    @seed(hash((seed_number, block)))
    @settings(
        max_examples=BLOCK + 1,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(CASE_STRATEGIES[form])
    def collect(value: Any) -> None:
        drawn.append(value)

    collect()
    return drawn[1:]


def prepare(folder: Path) -> None:
    """Write what the functions read."""
    from tests.fuzz import clips, files

    (folder / "files").mkdir()
    files.prepare(folder / "files")
    clips._encode(folder / "a.mp4", clips.SIZE, codec="libx264")


def warm_up(folder: Path) -> None:
    """Compile what children use."""
    import floc

    tokens = np.random.default_rng(0).standard_normal((40, 3, 4, 8)).astype(np.float32)
    for options in ({}, {"metric": "gaussian"}, {"backend": "torch"}, {"backend": "reference", "block": 4}):
        oracles.check_kept(floc.compress(tokens, ratio="1/8", **options))
    floc.select(np.eye(4), 2)
    for form in FORMATS:
        draw_block.cache_clear()
        draw_block(form, 0, 0)


def choose_format(case: int) -> str:
    """Return the function of a case."""
    return FORMATS[case // BLOCK % len(FORMATS)]


def run(folder: Path, seed_number: int, case: int) -> Outcome:
    """Run one case."""
    form = choose_format(case)
    drawn = draw_block(form, seed_number, case // BLOCK)
    arguments = drawn[case % BLOCK % len(drawn)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            RUNNERS[form](folder, *arguments)
        outcome = Outcome(VALID)
    except BaseException as error:
        outcome = judge_error(error)
    try:
        what = f"{form}{arguments!r}"[:300]
    except ValueError:  # Python does not print integers of thousands of digits
        what = f"{form}, with a number of thousands of digits"
    return Outcome(outcome.verdict, outcome.reason, outcome.place, what)


def _compress(folder: Path, recipe: dict, budget: dict, options: dict) -> Any:
    import floc

    tokens = make_array(recipe)
    before = tokens.clone() if isinstance(tokens, torch.Tensor) else None
    kept = floc.compress(tokens, **budget, **options)
    oracles.check_kept(kept)
    require(kept.n == math.prod(tokens.shape[:-1]), f"{kept.n} tokens of {tuple(tokens.shape)}")
    require(isinstance(kept.features, torch.Tensor if before is not None else np.ndarray), f"{type(kept.features)}")
    require(kept.features.dtype == tokens.dtype, f"{kept.features.dtype} of {tokens.dtype}")
    if before is not None:
        require(torch.equal(before, tokens), "the input was changed")
    oracles.check_coverage(kept, tokens)
    flat = tokens.reshape(-1, tokens.shape[-1])
    require(bool((flat[kept.indices] == kept.features).all()), "features are not those of the kept tokens")
    return kept


def _select(folder: Path, recipe: dict, k: Any, weights: dict | None, backend: Any) -> None:
    import floc

    similarity = make_array(recipe)
    result = floc.select(similarity, k, None if weights is None else make_array(weights), backend)
    picks = np.asarray(result.picks)
    require(picks.shape == (k,) and len(set(picks.tolist())) == k, f"picks {picks[:9]}")
    require(picks.min() >= 0 and picks.max() < similarity.shape[0], "picks are out of range")
    gains = np.asarray(result.gains)[1:]  # the first may be less: it starts from nothing, and similarities may be < 0
    require((gains[1:] <= gains[:-1]).all(), f"gains grow: {gains[:9]}")


def _stream(folder: Path, budget: dict, options: dict, recipe: dict, times: list) -> None:
    import floc

    stream = floc.Stream(**{name: value for name, value in budget.items() if name != "coverage"}, **options)
    array = make_array(recipe)
    pushed = 0
    for time_s in times or [None, None]:
        stream.push(array, time_s)
        pushed += array.shape[0] if array.ndim == 4 else 1
    kept = stream.kept()
    oracles.check_kept(kept)
    require(kept.shape[0] == pushed == stream.frames, f"{kept.shape[0]} frames of {pushed}")
    path = folder / f"state-{os.getpid()}"
    stream.save(path)
    again = floc.Stream.load(path).kept()
    require(np.array_equal(np.asarray(again.indices), np.asarray(kept.indices)), "a loaded stream differs")
    path.unlink()


def _at(folder: Path, recipe: dict, options: dict, budget: dict) -> None:
    import floc

    recipe = {**recipe, "dtype": "float32", "layout": "plain", "values": "normal"}
    kept = floc.compress(make_array(recipe), ratio="1/2", **options)
    fewer = kept.at(**budget)
    oracles.check_kept(fewer)
    require(set(fewer.indices.tolist()) <= set(kept.indices.tolist()), "at() added a token")


def _budget(folder: Path, ratio: Any, budget: Any, coverage: Any, n: Any) -> None:
    from floc.budget import Budget

    for given_values in ((ratio, None, None), (None, budget, None), (None, None, coverage), (ratio, budget, coverage)):
        try:
            parsed = Budget.parse(*given_values)
        except BaseException as error:
            outcome = judge_error(error)
            if outcome.verdict != "refused":
                raise
            continue
        require(len(str(parsed)) < 10_000, "the text of a budget is long")
        if parsed.coverage is None:
            for count in (1, 7, 10**9):
                require(1 <= parsed.count(count) <= count, f"{parsed} of {count} is {parsed.count(count)}")


def _scenes(folder: Path, recipe: dict, shortest: Any, longest: Any) -> None:
    import floc

    tokens = make_array(recipe)
    cuts = floc.scenes.find_cuts(tokens)
    require(cuts == sorted(set(cuts)) and all(0 < cut < tokens.shape[0] for cut in cuts), f"cuts {cuts}")
    floc.scenes.find_cuts(tokens, shortest=shortest)
    starts = floc.scenes.split_scenes(tokens, shortest=shortest, longest=longest)
    require(starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] < tokens.shape[0], f"starts {starts}")


def _method(folder: Path, recipe: dict, budget: dict, method: str, option: tuple[int, Any] | None) -> None:
    import floc

    options = {}
    if option is not None and method in floc.methods.list_methods():
        names = sorted(floc.methods.list_options(method)) or ["nothing"]
        options[names[option[0] % len(names)]] = option[1]
    if recipe["layout"] == "plain" and recipe["kind"] == "numpy":
        recipe = {**recipe, "dtype": "float32"}
    tokens = make_array(recipe)
    kept = floc.compress(tokens, **budget, method=method, **options)
    oracles.check_kept(kept)
    oracles.check_coverage(kept, tokens)
    require(kept.n == math.prod(tokens.shape[:-1]), f"{kept.n} tokens of {tuple(tokens.shape)}")


def _read_tokens(folder: Path, recipe: dict, tensor: Any) -> None:
    from safetensors.torch import save_file

    import floc
    from floc import files

    array = make_array(recipe)
    path = folder / f"tokens-{os.getpid()}"
    if isinstance(array, np.ndarray):
        path = path.with_suffix(".npy")
        np.save(path, array)
    elif isinstance(array, torch.Tensor) and array.layout == torch.strided and not array.is_meta:
        path = path.with_suffix(".safetensors")
        if array.is_complex():
            return
        save_file({"a": array.detach().contiguous()}, path)
    read = files.read_tokens(path, tensor if isinstance(tensor, str) else None)
    kept = floc.compress(read, budget=3)
    oracles.check_kept(kept)
    path.unlink()


def _video(folder: Path, fps: Any, max_frames: Any, batch: Any, size: Any, start: Any, end: Any) -> None:
    from floc import video

    wanted: Callable[[int, int], Any] | None = None if size is None else (lambda width, height: size)
    if type(size) is int and 0 < size < 500:
        wanted = lambda width, height: (size, size)  # noqa: E731
    clip = video.read(folder / "a.mp4", fps=fps, max_frames=max_frames, batch=batch, size=wanted)
    oracles.check_frames(clip, clip.width, clip.height, max_frames, least=min(clip.planned, 1))
    if fps is None:
        return
    part = clip.part(start, end)
    oracles.check_frames(part, clip.width, clip.height, None)


def _store(folder: Path, action: str, a: Any, b: Any, c: Any, d: Any, recipe: dict) -> None:
    import shutil

    import floc

    path = folder / f"store-{os.getpid()}"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder / "files" / "store", path)
    store = floc.Store(path)
    try:
        if action == "open":
            oracles.check_captured(store.open("short.mp4", start_s=a, end_s=b, ratio=c, budget=d))
        elif action == "find":
            store.find(c or "")
        elif action == "search":
            found = store.search(
                make_array(recipe), 3 if a is None else a, video=c if d else None, encoder=None if d else c
            )
            require(all(math.isfinite(result.similarity) for result in found), "a similarity is not finite")
        elif action == "compact":
            store.compact(older_than_s=90000 if a is None else a)
        else:
            store.remove(c or "short.mp4")
    finally:
        require(not floc.Store(path).check(), "the store has problems afterwards")
        shutil.rmtree(path, ignore_errors=True)


RUNNERS: dict[str, Callable[..., Any]] = {
    "compress": _compress,
    "select": _select,
    "Stream": _stream,
    "Kept.at": _at,
    "Budget": _budget,
    "scenes": _scenes,
    "methods": _method,
    "read_tokens": _read_tokens,
    "video.read": _video,
    "Store": _store,
}
