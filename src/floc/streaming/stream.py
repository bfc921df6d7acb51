"""Endless video: frames go in as they come, and what is kept of them is there at any moment.

With a `ratio` blocks are compressed one after another, and what is kept grows with the video: token for token what
`floc.compress` with `dedupe=1` keeps of the same frames in the same blocks.

With a `budget` memory is bounded for ever. Every block hands a few survivors on, fewer the longer the past is, and the
survivors of all blocks are chosen from again whenever they are too many. A survivor carries the sum of the normalised
tokens it stands for, and when it is dropped its sum goes to its representative: the cosines of all those tokens with u
add up to exactly (that sum) . u as long as they share a representative, so an hour ago weighs what an hour weighs,
however often it was chosen from. Only `half_life_s` makes the past fade.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from floc import scenes
from floc._arrays import Array, copy_rows
from floc._checks import check_choice, is_positive_int
from floc._system import check_memory
from floc.budget import Budget
from floc.files import write_atomic
from floc.kept import Kept
from floc.selection.backends import BACKENDS
from floc.selection.backends import create_engine as engine_for
from floc.selection.engine import Engine
from floc.selection.objective import METRICS, Metric, Similarity
from floc.streaming.bounded import DEDUPE, Bounded
from floc.streaming.cutting import Cutter, Even
from floc.streaming.growing import Growing
from floc.streaming.past import Chooser, Past, Piece
from floc.tokens import TokenGrid

FORMAT = 2
_TIME = "time_s must be a finite number of seconds, of several frames one for each"


class Stream:
    """Tokens kept of a video that is still going on."""

    def __init__(
        self,
        *,
        ratio: float | str | None = None,
        budget: int | None = None,
        block: int | Literal["scene"] = 32,
        dedupe: float | None = None,
        detail: float = 2,
        metric: Metric = "cosine",
        half_life_s: float | None = None,
        dim: int | None = None,
        backend: str = "auto",
    ) -> None:
        """Args:
        ratio: kept / total; what is kept grows with the video.
        budget: how many tokens to keep of all there ever were, in bounded memory.
        block: frames chosen from together; "scene": cut where scenes change, in the tokens, as far as that shows
            while the video goes on. Cuts are found as `floc.compress` finds them but for two things: what is usual is
            known from the past alone, and a scene of more than 64 frames is cut into parts of 32 and a last one of up
            to 64, not into equal ones. With a ratio, what is kept is what `floc.compress` with `dedupe=1` keeps of the
            same blocks, token for token.
        dedupe: with a budget, how many tokens for each one of its share a block hands on to be chosen from (1.25).
        detail: how much more badly covered tokens weigh (2); 1 is not at all.
        metric: "cosine", or with a ratio "gaussian".
        half_life_s: with a budget, after how many seconds the past weighs half; None: never.
        dim: how many features of a token are compared, the first ones; those after them go along. None: all.
        backend: as in `floc.compress`.
        """
        self._dial = Budget.parse(ratio, budget, None)
        check_choice("backend", backend, BACKENDS)
        if not (is_positive_int(block) or (isinstance(block, str) and block == "scene")):
            raise ValueError(
                f"block must be a number of frames, or 'scene': a stream has no end to wait for; got {block!r}"
            )
        for name, given in (("dedupe", None if dedupe == 1 else dedupe), ("half_life_s", half_life_s)):
            if budget is None and given is not None:
                raise ValueError(
                    f"{name} is for a budget, with a ratio every block keeps its own share; got {name}={given!r}: "
                    "leave it out, or pass budget="
                )
        if budget is not None and metric != "cosine":
            raise ValueError(f"with a budget the metric is cosine, whose sums can be carried on; got {metric!r}")
        check_choice("metric", metric, METRICS)
        if dim is not None and not is_positive_int(dim):
            raise ValueError(f"dim must be a number of features, at least 1, or None: all; got {dim!r}")
        dedupe = DEDUPE if dedupe is None else dedupe
        for name, value, least in (("dedupe", dedupe, 1), ("detail", detail, 1)):
            if not (_is_number(value) and least <= value < math.inf):
                raise ValueError(f"{name} must be a number, at least {least}; got {value!r}")
        if half_life_s is not None and not (_is_number(half_life_s) and half_life_s > 0):
            raise ValueError(f"half_life_s must be a number of seconds above 0, or None: never; got {half_life_s!r}")
        self._settings: dict[str, Any] = dict(
            ratio=None if ratio is None else str(self._dial.ratio),
            budget=self._dial.budget,
            block=block if isinstance(block, str) else int(block),
            dedupe=float(dedupe) if budget is not None else None,
            detail=float(detail),
            metric=metric,
            half_life_s=None if half_life_s is None else float(half_life_s),
            dim=None if dim is None else int(dim),
            backend=backend,
        )
        self._similarity = Similarity(metric, detail)
        self._engine: Engine | None = None
        self._cutter: Cutter = scenes.RunningScenes(dim) if isinstance(block, str) else Even(int(block))
        self._room: torch.Tensor | None = None  # [room, H, W, D] for the frames that are no block yet
        self._times: list[float] = []  # of these frames: as many as there are
        self._numpy_dtype: np.dtype | None = None
        self._frames = 0  # in complete blocks
        self._first_s = self._last_s = 0.0
        self._is_timed = False  # whether times are given
        self._is_closed = False
        self.note: dict[str, Any] = {}  # what its owner wants saved with it, as JSON takes it
        self._past: Past = Growing(self._dial) if budget is None else Bounded(int(budget), float(dedupe), half_life_s)

    def __repr__(self) -> str:
        return f"Stream({self._dial}, {self.frames} frames so far)"

    @property
    def settings(self) -> dict[str, Any]:
        """What it was made with, defaults too."""
        return dict(self._settings)

    @property
    def frames(self) -> int:
        """How many there were."""
        return self._frames + len(self._times)

    @torch.inference_mode(False)  # what is held is written to later, when no such mode may be on
    def push(self, tokens: Array, time_s: float | Sequence[float] | np.ndarray | None = None) -> None:
        """Take one more frame, or several; what is wrong with them leaves the stream as it was.

        Args:
            tokens: [H, W, D] or [N, D] of a frame, or [t, H, W, D] of several; like those before in all but t.
            time_s: when it is shown, later than the one before; of several, one for each. Where it is never given,
                frames are counted.
        """
        if self._is_closed:
            raise ValueError("the stream is closed; open another one")
        frames = self._checked(tokens)
        times = self._checked_times(time_s, len(frames))
        if self._room is None:
            self._make_room(frames)
            self._numpy_dtype = tokens.dtype if isinstance(tokens, np.ndarray) else None
            self._first_s, self._is_timed = times[0], time_s is not None
        assert self._room is not None
        if len(self._times) == len(self._room):  # a block could not be chosen from before, for want of memory
            self._complete_blocks()
        for frame, time in zip(frames, times, strict=True):
            place = len(self._times)
            copy_rows(self._room, place, frame[None])
            if len(frames) == 1:  # what was just copied is in the cache; as long as it has no time it is not there
                TokenGrid(self._room[place : place + 1]).require_finite()
            self._times.append(time)
            self._last_s = time
            self._cutter.see(self._room, len(self._times))
            self._complete_blocks()

    def kept(self) -> Kept:
        """What is kept of all frames so far, the block that is not complete among them."""
        if not self.frames:
            raise ValueError("nothing was pushed yet")
        assert self._room is not None, "made with the first frame"
        rest, start = [], 0
        for length in self._cutter.rest(len(self._times)):
            rest.append(self._piece(slice(start, start + length)))
            start += length
        rows, columns = self._room.shape[1:3]
        kept = self._past.kept(self._chooser(), rest, (rows, columns), self._numpy_dtype)
        settings = {name: value for name, value in self._settings.items() if value is not None}
        return replace(kept, method="stream", settings=settings, span_s=(self._first_s, self._last_s))

    def close(self) -> Kept:
        """The last word: what is kept of all; nothing can be pushed any more."""
        kept = self.kept()
        self._is_closed = True
        return kept

    def save(self, path: str | Path) -> None:
        """Write all that it takes to go on from here, whole or not at all."""
        from safetensors.torch import save_file

        tensors = {name: each.cpu().contiguous() for name, each in self._past.state().items()}
        if self._room is not None:
            tensors["room"] = self._room[: len(self._times)].cpu().contiguous()
        tensors["times"] = torch.tensor(self._times, dtype=torch.float64)
        about = {
            "format": FORMAT,
            "settings": self._settings,
            "frames": self._frames,
            "span_s": [self._first_s, self._last_s],
            "timed": self._is_timed,
            "numpy_dtype": None if self._numpy_dtype is None else str(self._numpy_dtype),
            "device": None if self._room is None else str(self._room.device),
            "closed": self._is_closed,
            "past": self._past.about(),
            "cutter": self._cutter.about(),
            "note": self.note,
        }
        write_atomic(Path(path), lambda temporary: save_file(tensors, temporary, {"floc-stream": json.dumps(about)}))

    @classmethod
    @torch.inference_mode(False)
    def load(cls, path: str | Path, *, device: str | torch.device | None = None) -> Stream:
        """The stream that was saved; it goes on exactly as it would have.

        Args:
            path: what `save` wrote.
            device: where its tokens are; where they were, if not given.
        """
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if "floc-stream" not in metadata:
                    raise ValueError("Stream.save did not write it; what was kept is read by floc.files.read_kept")
                about = json.loads(metadata["floc-stream"])
                if about["format"] != FORMAT:
                    raise ValueError(f"format {about['format']!r}, this version of floc reads {FORMAT}")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            settings = {name: value for name, value in about["settings"].items() if value is not None}
            stream = cls(**settings)
            stream._restore(tensors, about, _place(device or about["device"] or "cpu"))
        except (SafetensorError, OSError, LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path}: not a readable stream of floc ({error})") from error
        return stream

    def _restore(self, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any], device: torch.device) -> None:
        self._past.restore({name: each.to(device) for name, each in tensors.items()}, about["past"])
        self._cutter.restore(about["cutter"])
        self._times = tensors["times"].tolist()
        if "room" in tensors:
            few = tensors["room"].to(device)
            if len(few) != len(self._times):
                raise ValueError(f"{len(few)} frames wait, with times for {len(self._times)}")
            self._room = few.new_empty(self._cutter.room, *few.shape[1:])
            self._room[: len(few)] = few
            self._engine = engine_for(self._settings["backend"], device)
        self._frames = about["frames"]
        self._first_s, self._last_s = about["span_s"]
        self._numpy_dtype = None if about["numpy_dtype"] is None else np.dtype(about["numpy_dtype"])
        self._is_timed, self._is_closed, self.note = about["timed"], about["closed"], about["note"]

    def _make_room(self, frames: torch.Tensor) -> None:
        """Get ready for frames like these; an error where a block of them could not be chosen from."""
        engine, most = engine_for(self._settings["backend"], frames.device), self._cutter.room
        n = most * frames.shape[1] * frames.shape[2]
        needed = engine.bytes_needed(n, self._settings["dim"] or frames.shape[3], self._similarity)
        check_memory(n, needed, frames.device, f"block= with fewer than {most} frames")
        self._room = frames.new_empty(most, *frames.shape[1:])
        self._engine = engine

    def _complete_blocks(self) -> None:
        """Frames that wait and are a block go to the past; the others move up."""
        assert self._room is not None
        while frames := self._cutter.complete(len(self._times)):
            self._past.add(self._chooser(), self._piece(slice(0, frames)))
            left = len(self._times) - frames
            copy_rows(self._room, 0, self._room[frames : frames + left].clone())
            self._times = self._times[frames:]
            self._cutter.forget(frames)
            self._frames += frames

    def _piece(self, frames: slice) -> Piece:
        assert self._room is not None
        return Piece(self._room[frames], np.array(self._times[frames]))

    def _chooser(self) -> Chooser:
        assert self._engine is not None, "found with the first frame"
        return Chooser(self._engine, self._similarity, self._settings["dim"])

    def _checked(self, tokens: Array) -> torch.Tensor:
        """[t, H, W, D], fit to go in; whether a single frame is finite shows when it is copied."""
        if not isinstance(tokens, (torch.Tensor, np.ndarray)):
            raise TypeError(f"tokens must be a torch tensor or a numpy array, got {type(tokens).__name__}")
        if tokens.ndim not in (2, 3, 4):
            raise ValueError(f"tokens of a frame must be [H, W, D] or [N, D], got {tuple(tokens.shape)}")
        several = tokens if tokens.ndim == 4 else tokens[None] if tokens.ndim == 3 else tokens[None, None]
        frames = TokenGrid.from_array(several, check_finite=len(several) > 1 or self._room is None).tokens.detach()
        dim = self._settings["dim"]
        if dim is not None and dim > frames.shape[-1]:
            raise ValueError(f"dim={dim} features are compared, but tokens have {frames.shape[-1]}")
        if self._room is not None:
            before = self._room[0]
            if frames.shape[1:] != before.shape:
                raise ValueError(
                    f"all frames of a stream have one shape: {tuple(frames.shape[1:])} came after "
                    f"{tuple(before.shape)}; open another stream for it"
                )
            if (frames.dtype, frames.device) != (before.dtype, before.device):
                raise ValueError(
                    f"all frames of a stream have one dtype and device: {frames.dtype} on {frames.device} came after "
                    f"{before.dtype} on {before.device}"
                )
        return frames

    def _checked_times(self, time_s: Any, count: int) -> list[float]:
        if self.frames and self._is_timed != (time_s is not None):
            had, has = ("a time", "none") if self._is_timed else ("no time", "one")
            raise ValueError(f"frames before had {had}, this has {has}; give time_s for all of them or for none")
        if time_s is None:
            times = [float(self.frames + i) for i in range(count)]
        elif isinstance(time_s, float | int):
            times = [float(time_s)]
        else:
            try:
                times = np.atleast_1d(np.asarray(time_s, np.float64)).tolist()
            except (TypeError, ValueError):
                raise ValueError(f"{_TIME}; got {time_s!r}") from None
        if len(times) != count or not isinstance(times[0], float):
            raise ValueError(f"every frame needs its time: {count} frames came with times of shape {np.shape(times)}")
        for before, time in zip([self._last_s if self.frames else -math.inf, *times], times, strict=False):
            if not math.isfinite(time):
                raise ValueError(f"{_TIME}; got {time!r}")
            if not time > before:
                raise ValueError(
                    f"time goes on: a frame at {time} s came after one at {before} s; push frames in order"
                )
        return times


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _place(device: str | torch.device) -> torch.device:
    """A device that is here."""
    place = torch.device(device)
    try:
        torch.empty(1, device=place)
    except (AssertionError, RuntimeError) as error:  # torch built without CUDA asserts
        raise ValueError(f"its tokens go to {place}, which cannot be used here; pass device='cpu'") from error
    return place
