"""Endless video: frames go in as they come, and what is kept of them is there at any moment.

With a `ratio` blocks are compressed one after another, and what is kept grows with the video: token for token what
`floc.compress` with `dedupe=1` keeps of the same frames.

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
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import blocks
from .arrays import Array, like, numpy_of
from .dials import Dial
from .naming import require_known
from .path import Choice, joined
from .selection import BACKENDS
from .selection import engine as engine_for
from .selection.engine import Engine, Job, Solution, Targets
from .selection.objective import SCALE, Metric, Similarity
from .standing import Summed
from .store import write_whole
from .types import Kept, TokenGrid

FORMAT = 1
DEDUPE = 1.5  # less than `floc.compress` takes: a choice from the survivors costs the square of their number
ROOM = 2  # survivors held before they are chosen from again, for each one that stays: fewer choices, more memory
SPREAD = 1.25  # how far from its fair share what a block hands on may be, by what it gains
WEIGHT_LIMIT = 2.0**30  # weights add up to no more, so that exact gains fit 64 bits


class Stream:
    """Tokens kept of a video that is still going on."""

    def __init__(
        self,
        *,
        ratio: float | str | None = None,
        budget: int | None = None,
        block: int = 32,
        dedupe: float | None = None,
        detail: float = 2,
        metric: Metric = "cosine",
        half_life_s: float | None = None,
        backend: str = "auto",
    ) -> None:
        """Args:
        ratio: kept / total; what is kept grows with the video.
        budget: how many tokens to keep of all there ever were, in bounded memory.
        block: frames chosen from together.
        dedupe: with a budget, how many survivors for each token kept the past is held in (1.5).
        detail: how much more badly covered tokens weigh (2); 1 is not at all.
        metric: "cosine", or with a ratio "gaussian".
        half_life_s: with a budget, after how many seconds the past weighs half; None: never.
        backend: as in `floc.compress`.
        """
        self._dial = Dial.of(ratio, budget, None)
        require_known("backend", backend, BACKENDS)
        if not blocks.is_count(block):
            raise ValueError(f"block must be a number of frames: a stream has no end to wait for; got {block!r}")
        if budget is None and (dedupe not in (None, 1) or half_life_s is not None):
            raise ValueError("dedupe= and half_life_s= are for a budget; with a ratio every block keeps its own share")
        if budget is not None and metric != "cosine":
            raise ValueError(f"with a budget the metric is cosine, whose sums can be carried on; got {metric!r}")
        dedupe = DEDUPE if dedupe is None else dedupe
        for name, value, least in (("dedupe", dedupe, 1), ("detail", detail, 1)):
            if not (_is_number(value) and least <= value < math.inf):
                raise ValueError(f"{name} must be a number, at least {least}; got {value!r}")
        if half_life_s is not None and not (_is_number(half_life_s) and half_life_s > 0):
            raise ValueError(f"half_life_s must be a number of seconds above 0, or None: never; got {half_life_s!r}")
        self._settings: dict[str, Any] = dict(
            ratio=None if ratio is None else str(self._dial.ratio),
            budget=self._dial.budget,
            block=int(block),
            dedupe=float(dedupe) if budget is not None else None,
            detail=float(detail),
            metric=metric,
            half_life_s=half_life_s,
            backend=backend,
        )
        self._similarity = Similarity(metric, detail)
        self._engine: Engine | None = None
        self._room: torch.Tensor | None = None  # [block, H, W, D] for the frames of the block that is not complete
        self._times: list[float] = []  # of these frames: as many as there are
        self._numpy_dtype: np.dtype | None = None
        self._frames = 0  # in complete blocks
        self._first_s = self._last_s = 0.0
        self._is_closed = False
        self._past: _Growing | _Bounded = (
            _Growing(self._dial) if budget is None else _Bounded(int(budget), float(dedupe), half_life_s)
        )

    def __repr__(self) -> str:
        return f"Stream({self._dial}, {self.frames} frames so far)"

    @property
    def frames(self) -> int:
        """How many there were."""
        return self._frames + len(self._times)

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
        if self._engine is None:
            self._engine = engine_for(self._settings["backend"], frames.device)
            self._numpy_dtype = tokens.dtype if isinstance(tokens, np.ndarray) else None
            self._first_s = times[0]
            self._room = frames.new_empty(self._settings["block"], *frames.shape[1:])
        assert self._room is not None
        for frame, time in zip(frames, times, strict=True):
            self._room[len(self._times)] = frame
            self._times.append(time)
            self._last_s = time
            if len(self._times) == len(self._room):
                self._complete()

    def kept(self) -> Kept:
        """What is kept of all frames so far, the block that is not complete among them."""
        if not self.frames:
            raise ValueError("nothing was pushed yet")
        assert self._engine is not None, "set with the first frame"
        rest = self._room[: len(self._times)] if self._room is not None and self._times else None
        kept = self._past.kept(self._engine, self._similarity, rest, self._times, self._numpy_dtype)
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
            "numpy_dtype": None if self._numpy_dtype is None else str(self._numpy_dtype),
            "device": None if self._room is None else str(self._room.device),
            "closed": self._is_closed,
            "past": self._past.about(),
        }
        write_whole(Path(path), lambda temporary: save_file(tensors, temporary, {"floc-stream": json.dumps(about)}))

    @classmethod
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
                about = json.loads((file.metadata() or {})["floc-stream"])
                if about["format"] != FORMAT:
                    raise ValueError(f"format {about['format']!r}, this version of floc reads {FORMAT}")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            settings = {name: value for name, value in about["settings"].items() if value is not None}
            stream = cls(**settings)
            place = torch.device(device or about["device"] or "cpu")
            stream._past.restore({name: each.to(place) for name, each in tensors.items()}, about["past"])
            stream._times = tensors["times"].tolist()
            if "room" in tensors:
                few = tensors["room"].to(place)
                stream._room = few.new_empty(settings["block"], *few.shape[1:])
                stream._room[: len(few)] = few
            stream._frames = about["frames"]
            stream._first_s, stream._last_s = about["span_s"]
            stream._numpy_dtype = None if about["numpy_dtype"] is None else np.dtype(about["numpy_dtype"])
            stream._is_closed = about["closed"]
            if stream.frames:
                stream._engine = engine_for(settings["backend"], place)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path}: not a readable stream of floc ({error})") from error
        return stream

    def _complete(self) -> None:
        assert self._engine is not None
        assert self._room is not None
        self._past.add(self._engine, self._similarity, self._room, self._times)
        self._frames += len(self._room)
        self._times = []

    def _checked(self, tokens: Array) -> torch.Tensor:
        """[t, H, W, D], fit to go in."""
        if not isinstance(tokens, (torch.Tensor, np.ndarray)):
            raise TypeError(f"tokens must be a torch tensor or a numpy array, got {type(tokens).__name__}")
        if tokens.ndim not in (2, 3, 4):
            raise ValueError(f"tokens of a frame must be [H, W, D] or [N, D], got {tuple(tokens.shape)}")
        several = tokens if tokens.ndim == 4 else tokens[None] if tokens.ndim == 3 else tokens[None, None]
        frames = TokenGrid.of(several).tokens
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
        if time_s is None:
            times = [float(self.frames + i) for i in range(count)]
        else:
            times = [float(each) for each in np.atleast_1d(np.asarray(time_s, np.float64))]
        if len(times) != count:
            raise ValueError(f"every frame needs its time: {count} frames came with {len(times)} times")
        for before, time in zip([self._last_s if self.frames else -math.inf, *times], times, strict=False):
            if not (math.isfinite(time) and time > before):
                raise ValueError(
                    f"time goes on: a frame at {time:g} s came after one at {before:g} s; push frames in order, and "
                    "give time_s for all of them or for none"
                )
        return times


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False)
class _Block:
    """What is held of a block: picks a little further than its share goes, so that shares may shift by one."""

    choice: Choice
    features: torch.Tensor  # [picks, D]
    times: np.ndarray  # [frames]


class _Growing:
    """The past with a ratio: all blocks, each with its own picks."""

    def __init__(self, dial: Dial) -> None:
        self.dial = dial
        self.blocks: list[_Block] = []
        self.cells: tuple[int, int] | None = None  # rows, columns

    def add(self, engine: Engine, similarity: Similarity, tokens: torch.Tensor, times: Sequence[float]) -> None:
        self.cells = (tokens.shape[1], tokens.shape[2])
        self.blocks.append(self._chosen(engine, similarity, tokens, times))

    def _chosen(self, engine: Engine, similarity: Similarity, tokens: torch.Tensor, times: Sequence[float]) -> _Block:
        flat = tokens.flatten(0, 2)
        depth = min(len(flat), self.dial.count(len(flat)) + 1)
        (solution,) = engine.solve([Job(flat, depth)], similarity, with_cosines=True)
        return _Block(_choice(solution), flat[torch.from_numpy(solution.picks).to(flat.device)], np.array(times))

    def kept(
        self,
        engine: Engine,
        similarity: Similarity,
        rest: torch.Tensor | None,
        times: Sequence[float],
        numpy_dtype: np.dtype | None,
    ) -> Kept:
        held = [*self.blocks, *([self._chosen(engine, similarity, rest, times)] if rest is not None else [])]
        rows, columns = self.cells or rest.shape[1:3]  # type: ignore[union-attr]
        cells = rows * columns
        sizes = np.array([len(each.times) * cells for each in held])
        path = joined([each.choice for each in held], sizes, shared=True, rising=similarity.is_plain_cosine)
        count = self.dial.count(int(sizes.sum()))
        path = path.upto(count)
        answer = path.answer(count)
        flat = np.concatenate([o + each.choice.picks for o, each in zip(sizes.cumsum() - sizes, held, strict=True)])
        in_order = np.argsort(flat)
        places = in_order[np.searchsorted(flat[in_order], answer.indices)]
        features = torch.cat([each.features for each in held])
        chosen = _as_given(features[torch.from_numpy(places).to(features.device)], numpy_dtype)
        all_times = np.concatenate([each.times for each in held])
        kept = Kept.from_answer(answer, chosen, (len(all_times), rows, columns), path)
        return replace(kept, times_s=like(chosen, all_times[answer.indices // cells]))

    def about(self) -> dict[str, Any]:
        return {"cells": self.cells, "next_gains": [each.choice.next_gain for each in self.blocks]}

    def state(self) -> dict[str, torch.Tensor]:
        if not self.blocks:
            return {}
        columns = {
            name: [getattr(each.choice, name) for each in self.blocks]
            for name in ("picks", "gains", "token", "rank", "cosine")
        }
        columns["block_times"] = [each.times for each in self.blocks]
        state = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in columns.items()}
        state |= {f"{name}.lengths": torch.tensor([len(each) for each in parts]) for name, parts in columns.items()}
        return {**state, "features": torch.cat([each.features for each in self.blocks])}

    def restore(self, state: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
        if about["cells"] is None:
            return
        self.cells = tuple(about["cells"])
        parts = {
            name: np.split(numpy_of(state[name]), np.cumsum(numpy_of(state[f"{name}.lengths"]))[:-1])
            for name in ("picks", "gains", "token", "rank", "cosine", "block_times")
        }
        features = state["features"].split([len(each) for each in parts["picks"]])
        for i, (next_gain, few) in enumerate(zip(about["next_gains"], features, strict=True)):
            arrays: Any = {name: parts[name][i] for name in ("picks", "gains", "token", "rank", "cosine")}
            self.blocks.append(_Block(Choice(**arrays, next_gain=next_gain), few, parts["block_times"][i]))


@dataclass(frozen=True, eq=False)
class _Survivors:
    """Tokens that stand for others, and the sums of those."""

    features: torch.Tensor  # [M, D]
    sums: torch.Tensor  # [M, D] float32, of the normalised tokens each stands for
    index: np.ndarray  # [M] int64, flat index in the whole video
    time_s: np.ndarray  # [M]

    def __len__(self) -> int:
        return len(self.index)


class _Room:
    """Survivors one after another in one piece of memory, which is never moved."""

    def __init__(self, like: _Survivors, room: int) -> None:
        self.room = _Survivors(
            like.features.new_empty(room, like.features.shape[1]),
            like.sums.new_empty(room, like.sums.shape[1]),
            np.empty(room, np.int64),
            np.empty(room),
        )
        self.count = 0
        self.add(like)

    def held(self) -> _Survivors:
        room, until = self.room, self.count
        return _Survivors(room.features[:until], room.sums[:until], room.index[:until], room.time_s[:until])

    def add(self, new: _Survivors) -> None:
        until = self.count + len(new)
        for name in ("features", "sums", "index", "time_s"):
            getattr(self.room, name)[self.count : until] = getattr(new, name)
        self.count = until

    def put(self, few: _Survivors) -> None:
        """Put these in the place of all there were."""
        self.count = 0
        self.add(few)


class _Bounded:
    """The past with a budget: survivors, chosen from again whenever they are too many."""

    def __init__(self, budget: int, dedupe: float, half_life_s: float | None) -> None:
        self.budget = budget
        self.stay = math.ceil(budget * dedupe)  # survivors after a reduction
        self.half_life_s = half_life_s
        self.room: _Room | None = None
        self.blocks = 0
        self.frames = 0
        self.cells: tuple[int, int] | None = None
        self.counted = 0.0  # tokens there were, as far as they have not faded
        self.bar = 0.0  # what the last survivor that stayed had gained
        self.until_s = 0.0
        self.block_tokens = 0

    def add(self, engine: Engine, similarity: Similarity, tokens: torch.Tensor, times: Sequence[float]) -> None:
        new = self._survivors(engine, similarity, tokens, times)
        fading = self._fading(times[-1])
        if self.room is None:
            self.block_tokens = tokens.shape[:3].numel()
            self.room = _Room(new, ROOM * self.stay + self.block_tokens)
        else:
            if fading < 1:
                self.room.held().sums.mul_(fading)
            self.room.add(new)
        self.cells = (tokens.shape[1], tokens.shape[2])
        self.counted = self.counted * fading + tokens.shape[:3].numel()
        self.until_s = times[-1]
        self.blocks += 1
        self.frames += len(tokens)
        if self.room.count > ROOM * self.stay:
            few, self.bar = _reduced(engine, similarity, self.room.held(), self.stay)
            self.room.put(few)

    def _survivors(
        self, engine: Engine, similarity: Similarity, tokens: torch.Tensor, times: Sequence[float]
    ) -> _Survivors:
        """What one more block hands on: its fair share of what stays, a little more or less by what it gains."""
        flat = tokens.flatten(0, 2)
        cells = tokens.shape[1] * tokens.shape[2]
        fair = math.ceil(self.stay / (self.blocks + 1))
        depth = min(len(flat), math.ceil(SPREAD * fair))
        (solution,) = engine.solve([Job(flat, depth)], similarity, with_cosines=False)
        worthy = int(np.count_nonzero(solution.gains / SCALE > self.bar)) if self.bar else fair
        count = min(depth, max(1, math.floor(fair / SPREAD), worthy))
        cluster = solution.history.representatives(len(flat), count)
        directions, lengths = engine.sum_by_cluster([(flat, cluster)], count, unit=True)
        picks = solution.picks[:count]
        return _Survivors(
            flat[torch.from_numpy(picks).to(flat.device)],
            directions.to(flat.device) * torch.from_numpy(lengths).to(flat.device, torch.float32)[:, None],
            self.frames * cells + picks,
            np.asarray(times)[picks // cells],
        )

    def _fading(self, now_s: float) -> float:
        """What is left of the past's weight."""
        if self.half_life_s is None or not self.blocks:
            return 1.0
        return 0.5 ** ((now_s - self.until_s) / self.half_life_s)

    def kept(
        self,
        engine: Engine,
        similarity: Similarity,
        rest: torch.Tensor | None,
        times: Sequence[float],
        numpy_dtype: np.dtype | None,
    ) -> Kept:
        held, counted, frames = None if self.room is None else self.room.held(), self.counted, self.frames
        if rest is not None:
            new = self._survivors(engine, similarity, rest, times)
            fading = self._fading(times[-1])
            held = new if held is None else _and(held, new, fading)
            counted = counted * fading + rest.shape[:3].numel()
            frames += len(rest)
        assert held is not None, "there was a frame"
        rows, columns = self.cells or rest.shape[1:3]  # type: ignore[union-attr]
        lengths, directions = _split(held.sums)
        chosen = _chosen(engine, similarity, held, directions, lengths, min(self.budget, len(held)))
        picked = held.index[chosen.picks]
        places = chosen.picks[np.argsort(picked)]
        indices = held.index[places]
        features = held.features[torch.from_numpy(places).to(held.features.device)]
        given = _as_given(features, numpy_dtype)
        return Kept(
            indices=like(given, indices),
            features=given,
            positions=like(given, np.stack(np.unravel_index(indices, (frames, rows, columns)), 1)),
            order=like(given, np.searchsorted(indices, picked)),
            gains=like(given, chosen.gains / (SCALE * _scale(lengths))),
            bound=None,
            shape=(frames, rows, columns),
            nested=True,
            standing=Summed(directions, lengths, counted, features, indices),
            times_s=like(given, held.time_s[places]),
        )

    def about(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _BOUNDED}

    def state(self) -> dict[str, torch.Tensor]:
        if self.room is None:
            return {}
        held = self.room.held()
        return {
            "features": held.features,
            "sums": held.sums,
            "index": torch.from_numpy(held.index),
            "time_s": torch.from_numpy(held.time_s),
        }

    def restore(self, state: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
        if about["cells"] is None:
            return
        for name in _BOUNDED:
            setattr(self, name, tuple(about[name]) if name == "cells" else about[name])
        held = _Survivors(state["features"], state["sums"], numpy_of(state["index"]), numpy_of(state["time_s"]))
        self.room = _Room(held, ROOM * self.stay + about["block_tokens"])


_BOUNDED = ("blocks", "frames", "cells", "counted", "bar", "until_s", "block_tokens")  # numbers that are saved


def _and(held: _Survivors, new: _Survivors, fading: float) -> _Survivors:
    """Survivors, faded, and more of them."""
    return _Survivors(
        torch.cat([held.features, new.features]),
        torch.cat([held.sums * fading, new.sums]),
        np.concatenate([held.index, new.index]),
        np.concatenate([held.time_s, new.time_s]),
    )


def _reduced(engine: Engine, similarity: Similarity, held: _Survivors, stay: int) -> tuple[_Survivors, float]:
    """Choose who stays; the sums of those who go are added to those of their representatives."""
    lengths, directions = _split(held.sums)
    chosen = _chosen(engine, similarity, held, directions, lengths, stay)
    heir = torch.from_numpy(chosen.history.representatives(len(held), stay)).to(held.sums.device)
    sums = torch.zeros(stay, held.sums.shape[1], device=held.sums.device).index_add(0, heir, held.sums)
    bar = float(chosen.gains[-1]) / (SCALE * _scale(lengths))
    in_time = np.argsort(held.index[chosen.picks])
    picks = chosen.picks[in_time]
    here = torch.from_numpy(picks).to(sums.device)
    sums = sums[torch.from_numpy(in_time).to(sums.device)]
    return _Survivors(held.features[here], sums, held.index[picks], held.time_s[picks]), bar


def _chosen(
    engine: Engine, similarity: Similarity, held: _Survivors, directions: torch.Tensor, lengths: np.ndarray, count: int
) -> Solution:
    weights = np.rint(lengths * _scale(lengths)).astype(np.int64)
    return engine.solve_weighted(held.features, Targets(directions, lengths, weights), count, similarity)


def _split(sums: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
    """[M] lengths and [M, D] directions."""
    lengths = torch.linalg.vector_norm(sums, dim=1)
    return numpy_of(lengths).astype(np.float64), sums / lengths.clamp(min=1e-30)[:, None]


def _scale(lengths: np.ndarray) -> float:
    """What makes lengths into whole numbers: fine, and as small as their sum requires."""
    return min(256.0, WEIGHT_LIMIT / max(1.0, float(lengths.sum())))


def _choice(solution: Solution) -> Choice:
    history = solution.history
    assert history.cosine is not None
    return Choice(
        solution.picks, solution.gains / SCALE, history.token, history.rank, history.cosine, solution.next_gain / SCALE
    )


def _as_given(features: torch.Tensor, numpy_dtype: np.dtype | None) -> Array:
    return features if numpy_dtype is None else numpy_of(features).astype(numpy_dtype, copy=False)
