"""Check and time selection within a horizon on a GPU, with variants of its kernels: `python -m benchmarks.gpu_band`.

Every case is compared with the torch backend on the same band before anything is timed. A variant that fails is
reported and the others go on. After 80 seconds no further variant starts. Results are written to gpu_band.json in the
folder $OUT, or here.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import floc
from benchmarks import harness
from benchmarks.gpu_timing import measure_ms, measure_rates, record_graph
from examples.synthetic import make_tokens
from floc.methods.floc import choose_horizon
from floc.selection.engine import Band
from floc.selection.gpu import band_rounds, band_selection, band_similarity
from floc.selection.gpu.band_rounds import BandPrograms
from floc.selection.gpu.band_similarity import BandTiles
from floc.selection.gpu.similarity import Rows
from floc.selection.objective import SCALE, Similarity
from floc.selection.torch import band_rounds as torch_rounds
from floc.selection.torch.engine import compute_band

DIM, HEIGHT, WIDTH, CELLS = 3584, 6, 10, 60
DETAIL = 3.0
LAST_START_S = 80
TILES = (
    BandTiles(128, 128, 8, 4),
    BandTiles(128, 64, 8, 4),
    BandTiles(128, 128, 16, 4),
    BandTiles(128, 128, 8, 3),
    BandTiles(128, 128, 4, 4),
    BandTiles(64, 128, 4, 4),
    BandTiles(128, 256, 16, 3),
)
WARPS = (1, 2, 4, 8)
SHAPES: tuple[dict[str, int], ...] = ({"ROWS": 32}, {"ROWS": 8}, {"TOKENS": 1024}, {"TOKENS": 256})
RANDOM_CASES = 24


@dataclass(frozen=True)
class Case:
    """A video, and how many of its tokens to keep."""

    name: str
    frames: int
    budget: int

    @property
    def band(self) -> Band:
        """The band of the default horizon."""
        return Band(self.frames, CELLS, choose_horizon(self.frames * CELLS, self.budget))


EIGHTH = Case("1/8", 784, 5880)
CASES = (EIGHTH, Case("1/32", 784, 1470), Case("32 frames, 1/8", 32, 240), Case("7,200 frames", 7200, 24_576))
STARTED = time.perf_counter()


def main() -> None:
    """Check everything, then time everything."""
    device = torch.device("cuda")
    document: dict[str, Any] = {"environment": harness.describe_environment(), "records": []}

    def note(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        if time.perf_counter() - STARTED > LAST_START_S:
            document["records"].append({"name": name, "error": "no time left"})
            return
        try:
            record = measure()
        except Exception as error:
            record = {"error": f"{type(error).__name__}: {error}"[:500]}
        record = {"name": name, **record, "at_s": round(time.perf_counter() - STARTED, 1)}
        document["records"].append(record)
        print(json.dumps(record, default=float), flush=True)
        Path(os.environ.get("OUT", "."), "gpu_band.json").write_text(json.dumps(document, indent=1, default=float))

    note("rates", lambda: measure_rates(device, small=False))
    note("random bands", lambda: check_random_bands(device))
    tokens = {frames: make_video(frames, device) for frames in (784, 32)}
    for case in CASES[:3]:
        for label, measure in MEASUREMENTS.items():
            note(f"{case.name}: {label}", functools.partial(measure, tokens[case.frames], case))
    note("1/8: floors", lambda: time_floors(tokens[784], EIGHTH.band))
    for name, variant in list_variants(tokens[784], EIGHTH):
        note(name, variant)
    del tokens[784]
    long = make_video(7200, device)
    for label, measure in MEASUREMENTS.items():
        note(f"{CASES[3].name}: {label}", functools.partial(measure, long, CASES[3]))
    note("7,200 frames: floors", lambda: time_floors(long, CASES[3].band))
    for case, video in ((CASES[2], tokens[32]), (CASES[3], long)):
        for name, variant in list_programs(video, case):
            note(name, variant)


def make_video(frames: int, device: torch.device) -> torch.Tensor:
    """[frames, HEIGHT, WIDTH, DIM] bfloat16: synthetic tokens of fewer features, turned into DIM at random."""
    small = torch.from_numpy(make_tokens(frames, HEIGHT, WIDTH, 128)).to(device, torch.bfloat16)
    turn = torch.randn(128, DIM, device=device, generator=torch.Generator(device).manual_seed(0)) / 128**0.5
    return small @ turn.to(torch.bfloat16)


def measure_rows(tokens: torch.Tensor) -> Rows:
    """Compute the factors that scale [frames, HEIGHT, WIDTH, D] tokens to length 1."""
    return Rows.measure(tokens.reshape(-1, tokens.shape[-1]))


def check_random_bands(device: torch.device) -> dict[str, Any]:
    """Compare the rounds with those in torch, on bands with many ties, by many programs, repeatedly."""
    generator = torch.Generator().manual_seed(0)
    checked = 0
    for number in range(RANDOM_CASES):
        largest = (1, 30, SCALE)[number % 3]
        frames = int(torch.randint(40, 900, (), generator=generator))
        band = Band(frames, 7, (1, 4)[number // 3 % 2])
        tokens = torch.randint(-1, 2, (band.n, 12), generator=generator).to(device, torch.float32)
        values = compute_band(tokens, band, Similarity("cosine", 1)) // (SCALE // largest)
        count = band.n // (2, 9)[number % 2]
        want = torch_rounds.greedy(values, band, count)
        sums = values.sum(1, dtype=torch.int32)
        for slices, warps in ((1 + band.frames // 1000, 1), (8, 1), (8, 4)):
            for _ in range(3):
                assert_greedy(values, sums, band, want, BandPrograms(slices, warps))
                checked += 1
    return {"checked": checked}


def assert_greedy(
    values: torch.Tensor,
    sums: torch.Tensor,
    band: Band,
    want: tuple[torch.Tensor, torch.Tensor],
    programs: BandPrograms | None,
) -> band_rounds.BandPicks:
    """Raise unless the picks and gains of the kernel are those of the torch backend; returns the picks."""
    count = len(want[0])
    picks = band_rounds.pick_in_rounds(values, sums, band, count, programs)
    gains, order = torch.sort(picks.gains, descending=True, stable=True)
    if not (torch.equal(order[:count], want[0]) and torch.equal(gains[:count].clamp_min(0).long(), want[1])):
        wrong = int((order[:count] != want[0]).sum())
        raise AssertionError(f"{wrong} of {count} picks are not greedy's: {band}, {programs}")
    return picks


def check_case(tokens: torch.Tensor, case: Case) -> dict[str, Any]:
    """Compare the band and the picks with those of the torch backend."""
    rows, band = measure_rows(tokens), case.band
    values, sums = band_similarity.compute_band(rows, band, DETAIL)
    expected = compute_band(rows.values, band, Similarity("cosine", DETAIL))
    largest = int((values - expected).abs().max())
    del expected
    if largest > 1 or not torch.equal(sums.long(), values.sum(1, dtype=torch.int64)):
        raise AssertionError(f"the band differs by {largest}, or its sums do")
    want = torch_rounds.greedy(values, band, case.budget + 1)
    picks = assert_greedy(values, sums, band, want, None)
    kept = floc.compress(tokens, budget=case.budget, horizon="auto", detail=DETAIL, backend="gpu")
    order = torch.as_tensor(kept.indices[kept.order])
    if not torch.equal(order, want[0][: case.budget]):
        raise AssertionError("floc.compress returns other picks")
    made = int((picks.gains > 0).sum())
    return {"largest_difference": largest, "rounds": int(picks.rounds.max()), "picks_made": made}


def time_stages(tokens: torch.Tensor, case: Case) -> dict[str, Any]:
    """Return the milliseconds of each stage, as a graph where it is a single launch or a few."""
    band = case.band
    rows = measure_rows(tokens)
    values, sums = band_similarity.compute_band(rows, band, DETAIL)
    picks = band_rounds.pick_in_rounds(values, sums, band, case.budget + 1)
    stages = {
        "measure": lambda: measure_rows(tokens),
        "band": lambda: band_similarity.compute_band(rows, band, DETAIL),
        "rounds": lambda: band_rounds.pick_in_rounds(values, sums, band, case.budget + 1),
        "sort": lambda: torch.sort(picks.gains, descending=True, stable=True),
        "all": lambda: band_selection.rank_in_band(rows.values, band, case.budget, DETAIL),
    }
    for stage in stages.values():
        stage()  # compiles its kernels, which a graph cannot
    return {name: measure_ms(record_graph(stage), small=False) for name, stage in stages.items()}


def time_calls(tokens: torch.Tensor, case: Case) -> dict[str, Any]:
    """Return the milliseconds of whole calls, plain and as a graph, within a horizon and with a second pass."""
    options: dict[str, dict[str, Any]] = {"horizon": {}, "second pass": {"dedupe": 2, "detail": 2}}
    times = {}
    for name, given in options.items():

        def compress(given: dict[str, Any] = given) -> floc.Kept:
            return floc.compress(tokens, budget=case.budget, backend="gpu", **given)

        times[name] = measure_ms(compress, small=False)
        times[f"{name}, graph"] = measure_ms(record_graph(compress), small=False)
    return times


def time_floors(tokens: torch.Tensor, band: Band) -> dict[str, Any]:
    """Return the milliseconds of copying the same bytes, and of the products of the band in torch."""
    flat = tokens.reshape(-1, DIM)
    values = torch.empty(band.n, band.width, dtype=torch.int16, device=tokens.device)
    frames = band.frames - band.horizon
    shape, strides = (frames, CELLS, DIM), (CELLS * DIM, DIM, 1)
    left = flat.as_strided(shape, strides)
    later = flat.as_strided((frames, CELLS + band.reach, DIM), strides)
    half = torch.empty(frames, CELLS, CELLS + band.reach, dtype=flat.dtype, device=flat.device)
    tokens_copy, values_copy = torch.empty_like(flat), torch.empty_like(values)
    return {
        # a copy reads and writes: half of it is the time to read tokens, or to write the band
        "copy of tokens": measure_ms(lambda: tokens_copy.copy_(flat), small=False),
        "copy of band": measure_ms(lambda: values_copy.copy_(values), small=False),
        "product of later slices": measure_ms(lambda: torch.bmm(left, later.mT, out=half), small=False),
    }


def list_variants(tokens: torch.Tensor, case: Case) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the names and measurements of all variants of both kernels."""
    rows = measure_rows(tokens)
    want = band_similarity.compute_band(rows, case.band, DETAIL)
    for tiles in TILES:

        def compute(tiles: BandTiles = tiles) -> tuple[torch.Tensor, torch.Tensor]:
            return band_similarity.compute_band(rows, case.band, DETAIL, tiles)

        def measure(compute: Callable[[], tuple[torch.Tensor, torch.Tensor]] = compute) -> dict[str, Any]:
            values, sums = compute()
            if int((values - want[0]).abs().max()) > 1 or not torch.equal(sums, values.sum(1, dtype=sums.dtype)):
                raise AssertionError("the band is wrong")
            return {"ms": measure_ms(record_graph(compute), small=False)}

        yield f"{case.name}: {tiles}", measure
    yield from list_programs(tokens, case, (1, 2))
    for shape in SHAPES:
        yield f"{case.name}: {shape}", functools.partial(time_rounds, want, case, None, shape)


def list_programs(
    tokens: torch.Tensor, case: Case, multiples: tuple[int, ...] = (1,)
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the names and measurements of several numbers of programs and warps."""
    band = band_similarity.compute_band(measure_rows(tokens), case.band, DETAIL)
    available = torch.cuda.get_device_properties(tokens.device).multi_processor_count
    for warps in WARPS:
        fewest = -(-case.frames // (available * (8 // warps)))  # slices that a program must own
        for multiple in multiples:
            programs = BandPrograms(multiple * fewest, warps)
            yield f"{case.name}: {programs}", functools.partial(time_rounds, band, case, programs, {})


def time_rounds(
    band: tuple[torch.Tensor, torch.Tensor], case: Case, programs: BandPrograms | None, shape: dict[str, int]
) -> dict[str, Any]:
    """Time the rounds by some programs, with some constants replaced, and compare the picks with the usual ones."""
    want = band_rounds.pick_in_rounds(*band, case.band, case.budget + 1)
    choose = band_rounds.choose_shape
    with mock.patch.object(band_rounds, "choose_shape", lambda *sizes: choose(*sizes) | shape):

        def pick() -> band_rounds.BandPicks:
            return band_rounds.pick_in_rounds(*band, case.band, case.budget + 1, programs)

        picks = pick()
        gains = [torch.sort(result.gains, descending=True).values[: case.budget] for result in (picks, want)]
        if not torch.equal(*gains):
            raise AssertionError("the picks are wrong")
        return {"ms": measure_ms(record_graph(pick), small=False), "rounds": int(picks.rounds.max())}


MEASUREMENTS = {"check": check_case, "stages": time_stages, "calls": time_calls}

if __name__ == "__main__":
    main()
