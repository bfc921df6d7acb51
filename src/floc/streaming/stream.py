"""`floc.Stream`: compression of a video frame by frame; the kept tokens are available at any time.

With a `ratio` the number of kept tokens grows with the video. With a `horizon`, the default, the result is close to
that of `floc.compress`: see `floc.streaming.horizon`. With a `block` blocks are compressed one after another, and the
result is exactly that of `floc.compress` with the same block.

With a `budget` memory is bounded. Every block contributes a few survivors, fewer the longer the past is, and whenever
there are too many, a selection among all of them keeps the budget. A survivor carries the sum of the normalized tokens
it represents, which goes to its representative when it is dropped. So the past keeps its weight (see
`floc.second_pass`); only `half_life_s` makes it decay. A `horizon` limits the distance between a token and its
representative, in a block and among survivors. It grows as the budget becomes a smaller share of the video. Tokens that
have decayed do not count, so with a half-life the horizon stops growing.
"""

import itertools
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from floc._arrays import Array, copy_rows, require_dense
from floc._atomic import write_atomic
from floc._checked_file import LARGEST, CheckedFile, Fields, open_checked
from floc._checks import (
    check_choice,
    check_count,
    check_factor,
    is_number,
    is_positive_int,
    require,
    shorten,
    to_float,
)
from floc._system import check_memory, restore_interrupts
from floc.budget import Budget
from floc.kept import Kept
from floc.methods.floc import Horizon, check_horizon, choose_horizon
from floc.selection.backends import BACKENDS, create_engine
from floc.selection.engine import Band
from floc.selection.objective import METRICS, Metric, Similarity
from floc.selection.torch.engine import TorchEngine
from floc.streaming.bounded import DEDUPE, BoundedPast
from floc.streaming.cutting import EvenCutter, HorizonCutter, SceneCutter
from floc.streaming.growing import GrowingPast
from floc.streaming.horizon import HorizonPast
from floc.streaming.past import SavedStream, Selector, StreamBlock, require_float32_range
from floc.tokens import TokenGrid

FORMAT = 2
BLOCK = 32  # frames
LONGEST_S = 1e300  # a longer half-life is none
_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
_TIME = "time_s must be a finite number of seconds; for several frames, one per frame"


class Stream:
    """Keeps the tokens that best represent a video while it is being received."""

    def __init__(
        self,
        *,
        ratio: float | str | None = None,
        budget: int | None = None,
        block: int | Literal["scene"] | None = None,
        dedupe: float | None = None,
        detail: float = 3,
        metric: Metric = "cosine",
        half_life_s: float | None = None,
        horizon: Horizon = "auto",
        dim: int | None = None,
        backend: str = "auto",
    ) -> None:
        """Args:
        ratio: Kept / total; the number of kept tokens grows with the video.
        budget: Number of tokens to keep of the whole stream, in bounded memory.
        block: Frames selected from together (32), or "scene" to follow scene changes. With a ratio it replaces the
            horizon. Scenes are found as in `floc.compress`, with two differences: the median break is that of the
            past, and a scene of more than 64 frames is split into parts of 32 frames and a last one of up to 64.
        dedupe: With a budget: survivors of a block per token of its share (1.25).
        detail: How much more badly covered tokens weigh (3); 1 turns it off.
        metric: "cosine"; with a ratio also "gaussian".
        half_life_s: With a budget: seconds after which the past weighs half; None: it does not decay.
        horizon: Frames between a token and its representative at most. "auto" is 1 / (8 ratio), from 4 to 16, and with
            a budget None: rare tokens of the past survive only without a limit. None with a ratio: blocks of 32
            frames. With a budget the kept share of the past becomes smaller, so a horizon grows to 1 / (8 r), where r
            is the budget divided by the tokens so far, without those that have decayed with `half_life_s`.
        dim: Number of features to compare, the first ones; the others are kept with them. None: all.
        backend: As in `floc.compress`.
        """
        self._budget = Budget.parse(ratio, budget, None)
        check_choice("backend", backend, BACKENDS)
        check_choice("metric", metric, METRICS)
        by_scene = isinstance(block, str) and block == "scene"
        if not (block is None or by_scene or (is_positive_int(block) and int(block) <= LARGEST)):
            expected = "a whole number of frames, at least 1, or 'scene'"
            raise ValueError(f"block of a stream must be {expected}; got {shorten(block)}")
        if dedupe is not None:
            check_factor("dedupe", dedupe)
        for name, given in (("dedupe", None if dedupe == 1 else dedupe), ("half_life_s", half_life_s)):
            if budget is None and given is not None:
                reason = f"{name} needs a budget: with a ratio every block keeps its own share"
                raise ValueError(f"{reason}; got {name}={shorten(given)}; leave it out, or pass budget=")
        if budget is not None and metric != "cosine":
            raise ValueError(f"with a budget the metric must be 'cosine', whose sums are stored; got {shorten(metric)}")
        if dim is not None:
            check_count("dim", dim, "features")
        check_factor("detail", detail)
        if half_life_s is not None and not (is_number(half_life_s) and 0 < to_float(half_life_s) < LONGEST_S):
            raise ValueError(f"half_life_s must be a number of seconds above 0, or None; got {shorten(half_life_s)}")
        dedupe, detail, size = float(DEDUPE if dedupe is None else dedupe), float(detail), self._budget
        half_life_s = half_life_s and float(half_life_s)
        frames = self._find_horizon(horizon, block, metric)
        kept_block: Any = None
        if frames is None or budget is not None:
            kept_block = block if by_scene else BLOCK if block is None else int(block)
        settings: dict[str, Any] = dict(ratio=size.ratio and str(size.ratio), budget=size.budget)
        settings |= dict(block=kept_block, dedupe=None if budget is None else dedupe)
        settings |= dict(detail=detail, metric=metric, half_life_s=half_life_s, horizon=frames)
        self._settings = settings | dict(dim=dim and int(dim), backend=backend)
        self._similarity = Similarity(metric, detail)
        self._engine: TorchEngine | None = None
        self._cutter = SceneCutter(dim) if by_scene else EvenCutter(kept_block or BLOCK)
        # [capacity, H, W, D], for frames that do not form a block yet, and with a horizon for those before them
        self._waiting: torch.Tensor | None = None
        self._times: list[float] = []  # of the waiting frames
        self._numpy_dtype: np.dtype | None = None
        self._frames = 0  # that are no longer waiting
        self._first_s = self._last_s = 0.0
        self._is_timed = False  # whether the caller gives times
        self._is_closed = False
        self.note: dict[str, Any] = {}  # JSON-serialisable data of the caller, saved with the stream
        self._past: GrowingPast | BoundedPast | HorizonPast = GrowingPast(self._budget)
        if size.budget is not None:
            self._past = BoundedPast(size.budget, dedupe, half_life_s, frames)
        elif frames is not None:
            self._cutter, self._past = HorizonCutter(frames), HorizonPast(self._budget, frames)

    def _find_horizon(self, horizon: Horizon, block: object, metric: str) -> int | None:
        """Check the horizon, and return it in frames; None if there is none."""
        if horizon is None:
            return None
        check_horizon(horizon)
        ratio = self._budget.ratio
        has_blocks = ratio is not None and (block is not None or metric != "cosine")
        if horizon == "auto":
            return None if ratio is None or has_blocks else choose_horizon(ratio.denominator, ratio.numerator)
        if has_blocks:
            given = f"block={shorten(block)}" if block is not None else f"metric={metric!r}"
            raise ValueError(f"horizon={shorten(horizon)} excludes blocks of a stream with a ratio; remove {given}")
        return min(int(horizon), LARGEST)

    def __repr__(self) -> str:
        return f"Stream({self._budget}, {self.frames} frames so far)"

    @property
    def settings(self) -> dict[str, Any]:
        """All options, including defaults."""
        return dict(self._settings)

    @property
    def frames(self) -> int:
        """Number of frames pushed."""
        return self._frames + len(self._times)

    @property
    def span_s(self) -> tuple[float, float]:
        """The times of the first and of the last frame."""
        return self._first_s, self._last_s

    @restore_interrupts()
    @torch.inference_mode(False)  # stored tensors are modified later, possibly outside of inference mode
    def push(self, tokens: Array, time_s: float | Sequence[float] | np.ndarray | None = None) -> None:
        """Add one or more frames. Invalid frames raise an error and leave the stream unchanged.

        Args:
            tokens: [H, W, D] or [N, D] for one frame, [t, H, W, D] for several; all of one shape, dtype and device.
            time_s: When the frame is shown, later than the one before; for several frames, one per frame. If never
                given, frames are counted.
        """
        require(not self._is_closed, "the stream is closed; open a new one")
        frames = self._check_frames(tokens)
        times = self._check_times(time_s, len(frames))
        if self._waiting is None:
            self._waiting = self._allocate(frames, self._cutter.least_capacity)
            self._numpy_dtype = tokens.dtype if isinstance(tokens, np.ndarray) else None
        if not self.frames:
            self._first_s, self._is_timed = times[0], time_s is not None
        if len(self._times) == self._cutter.capacity:  # the selection failed before, for lack of memory
            self._complete_blocks()
        for frame, time in zip(frames, times, strict=True):
            place = len(self._times)
            if place == len(self._waiting):
                larger = self._allocate(self._waiting, min(2 * place, self._cutter.capacity))
                copy_rows(larger, 0, self._waiting)
                self._waiting = larger
            copy_rows(self._waiting, place, frame[None])
            if len(frames) == 1:  # after the copy, when it is in the cache; without a time it does not count yet
                TokenGrid(self._waiting[place : place + 1]).require_finite()
            self._times.append(time)
            self._last_s = time
            self._cutter.observe(self._waiting[: place + 1])
            self._complete_blocks()

    @restore_interrupts()
    def kept(self) -> Kept:
        """Return the kept tokens of all frames so far, including those of the incomplete block."""
        require(self.frames > 0, "no frame was pushed yet")
        assert self._waiting is not None
        ends = itertools.accumulate(self._cutter.split_rest(len(self._times)), initial=0)
        rest = [self._get_block(slice(*span)) for span in itertools.pairwise(ends)]
        rows, columns = self._waiting.shape[1:3]
        kept = self._past.keep(self._get_selector(), rest, (rows, columns), self._numpy_dtype)
        settings = {name: value for name, value in self._settings.items() if value is not None}
        return replace(kept, method="stream", settings=settings, span_s=self.span_s)

    def close(self) -> Kept:
        """Return the kept tokens, and accept no more frames."""
        kept = self.kept()
        self._is_closed = True
        return kept

    def save(self, path: str | Path) -> None:
        """Write the state to a file, atomically; `load` continues from it."""
        from safetensors.torch import save_file

        tensors = {name: tensor.cpu().contiguous() for name, tensor in self._past.tensors().items()}
        if self._waiting is not None:
            tensors["room"] = self._waiting[: len(self._times)].cpu().contiguous()
        tensors["times"] = torch.tensor(self._times, dtype=torch.float64)
        numpy_dtype = None if self._numpy_dtype is None else str(self._numpy_dtype)
        device = None if self._waiting is None else str(self._waiting.device)
        metadata = {"format": FORMAT, "settings": self._settings, "frames": self._frames, "span_s": self.span_s}
        metadata |= {"timed": self._is_timed, "numpy_dtype": numpy_dtype, "device": device, "closed": self._is_closed}
        metadata |= {"past": self._past.metadata(), "cutter": self._cutter.metadata(), "note": self.note}
        write_atomic(Path(path), lambda temporary: save_file(tensors, temporary, {"floc-stream": json.dumps(metadata)}))

    @classmethod
    @torch.inference_mode(False)
    def load(cls, path: str | Path, *, device: str | torch.device | None = None) -> "Stream":
        """Read a saved stream, which continues exactly as the original would, by default on the same device."""
        with open_checked(Path(path), "a stream saved by floc") as file:
            if "floc-stream" not in file.entries:
                raise ValueError("it was not written by Stream.save; read kept tokens with floc.files.read_kept")
            metadata = file.fields("floc-stream")
            metadata.check_format(FORMAT)
            settings = metadata.section("settings").values
            for name in settings:
                check_choice("setting", name, cls.__init__.__kwdefaults__ or ())
            stream = cls(**{name: value for name, value in settings.items() if value is not None or name == "horizon"})
            if device is None:
                device = metadata.text("device", 20) if metadata.has("device") else "cpu"
            stream._restore(file, metadata, _check_device(device))
        return stream

    def _restore(self, file: CheckedFile, metadata: Fields, device: torch.device) -> None:
        """Restore a saved state; raise ValueError if no stream can have it."""
        times = file.tensor("times", (None,), torch.float64).numpy()
        self._first_s, self._last_s = metadata.numbers("span_s", 2, -sys.float_info.max, sys.float_info.max)
        self._is_timed, self._is_closed = metadata.flag("timed"), metadata.flag("closed")
        self.note = metadata.section("note").values
        past, cutter = metadata.section("past"), metadata.section("cutter")
        frames = metadata.integer("frames", 0, LARGEST if "room" in file.names else 0)
        if "room" not in file.names:
            require(len(times) == 0, f"{len(times)} frames wait, but tensor room is missing")
            return
        waiting = file.tensor("room", (len(times), None, None, None), "float")
        require_float32_range("room", waiting)
        rows, columns, dim = waiting.shape[1:]
        total, capacity = frames + len(times), self._cutter.capacity
        is_possible = 0 < rows * columns * dim <= LARGEST
        require(is_possible, f"frames of {rows}x{columns} tokens of {dim} features do not exist")
        require(total * rows * columns <= LARGEST, f"{total} frames of {rows}x{columns} tokens are too many")
        require(len(times) <= capacity, f"{len(times)} frames wait, at most {capacity} can")
        compared = self._settings["dim"] or dim
        require(compared <= dim, f"settings.dim is {compared}, and a token has {dim} features")
        require(self._first_s <= self._last_s, "span_s must not end before it starts")
        require((np.diff(times) > 0).all(), "tensor times must ascend")
        require(len(times) == 0 or times[-1] == self._last_s, "tensor times must end at the end of span_s")
        require(frames > 0 or len(times) == 0 or times[0] == self._first_s, "tensor times must start with span_s")
        if not self._is_timed and total:
            counted = np.array_equal(times, np.arange(frames, total)) and self.span_s == (0, total - 1)
            require(counted, "times of frames without a time must be their numbers")
        before = self._cutter.context if frames else 0
        require(len(times) >= before, f"{len(times)} frames wait, at least {before} must")
        end_s = float(times[before]) if len(times) > before else math.nextafter(self._last_s, math.inf)
        sizes = (frames, self._cutter.block, len(times), rows * columns, dim, compared)
        saved = SavedStream(*sizes, waiting.dtype, device, *self.span_s, end_s, before)
        self._past.restore(file, past, saved)
        self._cutter.restore(cutter, saved)
        self._numpy_dtype = _read_numpy_dtype(metadata, waiting.dtype)
        self._waiting = self._allocate(waiting.to(device), max(len(times), self._cutter.least_capacity))
        self._waiting[: len(times)] = waiting
        self._times, self._frames = times.tolist(), frames

    def _allocate(self, frames: torch.Tensor, capacity: int) -> torch.Tensor:
        """Allocate memory for waiting frames; raise MemoryError if a block of them could not be selected from."""
        engine, horizon = create_engine(self._settings["backend"], frames.device), self._settings["horizon"]
        cells, dim = frames.shape[1] * frames.shape[2], frames.shape[3]
        n, compared = capacity * cells, self._settings["dim"] or dim
        needed = engine.estimate_bytes(n, compared, self._similarity)
        remedy = f"block= with fewer than {capacity} frames"
        if isinstance(self._past, HorizonPast):
            needed = engine.estimate_band_bytes(Band(capacity, cells, min(horizon, capacity)), compared)
            remedy = f"a horizon below {horizon}, or smaller frames"
        needed += n * dim * frames.element_size()
        check_memory(n, needed, frames.device, remedy)
        self._engine = engine
        return frames.new_empty(capacity, *frames.shape[1:])

    def _complete_blocks(self) -> None:
        """Move waiting frames that form a block to the past."""
        assert self._waiting is not None
        while frames := self._cutter.find_block(len(self._times)):
            self._past.add(self._get_selector(), self._get_block(slice(0, frames), after=self._cutter.context))
            frames -= 2 * self._cutter.context  # what is around the end of the block is needed for the next one
            left = len(self._times) - frames
            copy_rows(self._waiting, 0, self._waiting[frames : frames + left].clone())
            self._times = self._times[frames:]
            self._cutter.discard(frames)
            self._frames += frames

    def _get_block(self, frames: slice, after: int = 0) -> StreamBlock:
        assert self._waiting is not None
        return StreamBlock(self._waiting[frames], np.array(self._times[frames]), self._cutter.before, after)

    def _get_selector(self) -> Selector:
        assert self._engine is not None
        return Selector(self._engine, self._similarity, self._settings["dim"])

    def _check_frames(self, tokens: Array) -> torch.Tensor:
        """Check frames and return them as [t, H, W, D]; `push` checks later whether a single frame is finite."""
        require_dense(tokens)
        if tokens.ndim not in (2, 3, 4):
            raise ValueError(f"tokens of a frame must be [H, W, D] or [N, D], got {tuple(tokens.shape)}")
        several = tokens if tokens.ndim == 4 else tokens[None] if tokens.ndim == 3 else tokens[None, None]
        frames = TokenGrid.from_array(several, check_finite=len(several) > 1 or self._waiting is None).tokens.detach()
        dim = self._settings["dim"]
        if dim is not None and dim > frames.shape[-1]:
            raise ValueError(f"dim={dim} is more than the {frames.shape[-1]} features of a token")
        if self._waiting is not None:
            before = self._waiting[0]
            if frames.shape[1:] != before.shape:
                change = f"{tuple(frames.shape[1:])} came after {tuple(before.shape)}"
                raise ValueError(f"all frames of a stream must have one shape: {change}; open another stream for it")
            if (frames.dtype, frames.device) != (before.dtype, before.device):
                change = f"{frames.dtype} on {frames.device} came after {before.dtype} on {before.device}"
                raise ValueError(f"all frames of a stream must have one dtype and device: {change}")
        return frames

    def _check_times(self, time_s: Any, count: int) -> list[float]:
        if self.frames and self._is_timed != (time_s is not None):
            had, has = ("a time", "none") if self._is_timed else ("no time", "one")
            raise ValueError(f"earlier frames had {had}, this one has {has}; give time_s for all frames or for none")
        if time_s is None:
            return [float(self.frames + i) for i in range(count)]
        try:
            given = np.atleast_1d(np.asarray(time_s))
            if given.dtype.kind not in "fiuO":  # numpy would convert text and dates, too
                raise TypeError
            given = given.astype(np.float64)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise ValueError(f"{_TIME}; got {shorten(time_s)}") from None
        if given.shape != (count,):
            raise ValueError(f"every frame needs one time: got {count} frames and times of shape {given.shape}")
        times = given.tolist()
        for last, time in zip([self._last_s if self.frames else -math.inf, *times], times, strict=False):
            if not math.isfinite(time):
                raise ValueError(f"{_TIME}; got {time!r}")
            if not time > last:
                raise ValueError(f"times must ascend: one at {time} s came after one at {last} s; push frames in order")
        return times


def _check_device(device: str | torch.device) -> torch.device:
    """Return the device; raise ValueError if it is not available."""
    try:
        available = torch.empty(1, device=device).device
    except (AssertionError, RuntimeError) as error:  # torch built without CUDA raises AssertionError
        raise ValueError(f"its tokens belong on {device}, which is not available; pass device='cpu'") from error
    require(available.type != "meta", "its tokens belong on meta, which stores no values; pass device='cpu'")
    return available


def _read_numpy_dtype(metadata: Fields, dtype: torch.dtype) -> np.dtype | None:
    """Read the dtype of the caller's numpy arrays, which the saved tokens have, in any byte order."""
    if not metadata.has("numpy_dtype"):
        return None
    name = metadata.text("numpy_dtype", 10)
    native = str(dtype).removeprefix("torch.")
    allowed = {native, str(np.dtype(native).newbyteorder("S"))} if dtype in _NUMPY_FLOATS else set()
    require(name in allowed, f"numpy_dtype must be that of tensor room, {native}, got {name!r}")
    return np.dtype(name)
