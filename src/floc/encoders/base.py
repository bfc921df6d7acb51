"""The encoder protocol: frames in, tokens [T, H, W, D] out.

`pixels` is built in and needs no weights. `mobilenet` is a pretrained network whose weights come with a small package.
`hf:<model>` is the vision encoder of a transformers model, as its language model would see the video.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from floc._arrays import Array
from floc._checks import check_choice
from floc.encoders.slice_choice import SliceOptions
from floc.families.processing import Limit, Rate
from floc.tokens import Frames
from floc.video.choice import FrameChoice, VideoFacts

if TYPE_CHECKING:
    from floc.video import Video

DEFAULT_FPS, DEFAULT_LIMIT = 1.0, 7200  # two hours at one frame per second, the most in the FLoC paper

# The grid of the built-in encoders: square cells, the same for all of them, so that reports can be compared
CELL = 32  # pixels on a side: the stride of MobileNetV2's last feature map
MAX_CELLS = 144  # of a frame: 9 x 16 for a wide screen
RESERVED_BYTES = 1 << 30  # for tokens at first: the length that a file states may be wrong


class FrameLayout(Protocol):
    """The frames that an encoder takes."""

    @property
    def frames_per_token(self) -> int:
        """Frames of one slice of tokens: 1, or 2 if a model joins frames in pairs."""

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height in pixels to resize a video's frames to."""


class Encoder(FrameLayout, Protocol):
    """Turns frames into tokens."""

    @property
    def name(self) -> str:
        """Its name in `get`."""

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        """Crop frames [B, height, width, 3] to the part that the grid of tokens covers."""

    def __call__(self, pixels: np.ndarray) -> Array:
        """Encode [B, height, width, 3] uint8 frames as [B / frames_per_token, H, W, D] tokens in a 16-bit format."""


class FrameTokens(NamedTuple):
    """The tokens of a few frames."""

    tokens: torch.Tensor  # [T, H, W, D]
    deep: tuple[torch.Tensor, ...] = ()  # [T, H, W, D] each, what Qwen3-VL adds to the tokens in its first layers

    @property
    def all(self) -> tuple[torch.Tensor, ...]:
        """Tokens and deep features."""
        return (self.tokens, *self.deep)


@dataclass(frozen=True)
class VideoTokens:
    """The tokens of a video."""

    tokens: Array  # [T, H, W, D], in host memory
    times_s: np.ndarray  # [T] float64, time of the first frame of each slice


Layout = TypeVar("Layout", bound=FrameLayout)


def open_video(
    path: Path, layout: Layout, *, fps: Rate = None, max_frames: Limit = None, batch: int
) -> "tuple[Video, Layout]":
    """Open a video as an encoder takes it; return it with the encoder, or the layout, for its frames.

    Args:
        fps: frames per second, or "all". Default: 1; for the encoder of a model, that of its processor.
        max_frames: limit on the frames, or "all". Default: 7200; for the encoder of a model, that of its processor.
    """
    from floc.video.read import check_sampling, read

    check_sampling(None if fps == "all" else fps, None if max_frames == "all" else max_frames)
    if not hasattr(layout, "plan_video"):  # only the processor of a model plans the whole video
        rate, limit = resolve_sampling(fps, max_frames)
        return read(path, fps=rate, max_frames=limit, size=layout.frame_size, batch=batch), layout
    planned: list[Any] = []

    def choose(facts: VideoFacts) -> FrameChoice:
        planned.append(layout.plan_video(facts, fps, max_frames))
        return planned[0].choose_frames()

    return read(path, choose=choose, batch=batch), planned[0]


def resolve_sampling(fps: Rate, max_frames: Limit) -> tuple[float | None, int | None]:
    """Return the sampling of the built-in encoders: frames per second and the limit, None for all frames."""
    rate = DEFAULT_FPS if fps is None else None if fps == "all" else fps
    return rate, DEFAULT_LIMIT if max_frames is None else None if max_frames == "all" else max_frames


def list_encoders() -> list[str]:
    """Return the names of all encoders but `hf:<model>`."""
    return ["auto", "mobilenet", "pixels"]


def get(
    name: str,
    *,
    device: str | None = None,
    reuse: float | None = None,
    encode: float | str | None = None,
    fast_vision: bool = True,
) -> Encoder:
    """Return the encoder with this name.

    Args:
        name: "pixels", "mobilenet", "hf:" with a folder or hub id, or "auto": mobilenet if its weights are installed,
            else pixels.
        device: where the network runs, such as "cuda:1". Default: the first GPU, else the CPU.
        reuse, encode: for "hf:", which slices are encoded, as in `floc.capture`. `encode` chooses among the slices of
            a call, 32 at a time. Calls continue one video; call the encoder's `forget()` before another one.
        fast_vision: of a model's vision encoder, compute attention faster, with the same results.
    """
    name = resolve_name(name)
    slices = SliceOptions(reuse, encode)
    slices.require_model(name)
    if name.startswith("hf:"):
        return import_module("floc.encoders.vision_tower").load(name, device, slices=slices, fast_vision=fast_vision)
    return import_module(f"floc.encoders.{name}").load(device)


def resolve_name(name: str) -> str:
    """Check the name of an encoder, and replace "auto" by the encoder it selects."""
    if not name.startswith("hf:"):
        check_choice("encoder", name, [*list_encoders(), "hf:<model>"])
    if name == "auto":
        return "mobilenet" if import_module("floc.encoders.mobilenet").weights_path() else "pixels"
    return name


def get_layout(name: str) -> FrameLayout:
    """Return the frame layout of an encoder, without loading its weights."""
    name = resolve_name(name)
    if name.startswith("hf:"):
        return import_module("floc.encoders.vision_tower").load_layout(name)
    return CellLayout()


class CellLayout:
    """The frame layout of the built-in encoders."""

    frames_per_token = 1

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        rows, columns = grid(width, height)
        return columns * CELL, rows * CELL

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        return pixels


def grid(width: int, height: int) -> tuple[int, int]:
    """Return the rows and columns for a video: as many cells as allowed, as square as whole numbers permit.

    >>> grid(1920, 1080), grid(1080, 1920), grid(640, 480), grid(5000, 10)
    ((9, 16), (16, 9), (10, 13), (1, 144))
    """
    if width < 1 or height < 1:
        raise ValueError(f"width and height of a video must be at least 1, got {width} x {height}")
    aspect = max(width, height) / min(width, height)
    short = max(1, round(math.sqrt(MAX_CELLS / aspect)))
    long = min(round(short * aspect), MAX_CELLS // short)
    return (short, long) if width >= height else (long, short)


def choose_device(name: str | None = None) -> torch.device:
    """Return the device with a name, by default the first GPU, else the CPU; raise ValueError if it cannot be used."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
        raise ValueError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from None


def encode(
    frames: Iterable[Frames],
    encoder: Encoder,
    *,
    planned: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> VideoTokens:
    """Encode a video while it is read, with one batch of its pixels and one copy of its tokens in host memory.

    The encoder of a model forgets the video before, and joins batches.

    Args:
        frames: batches of any size, in order; their width and height are from `encoder.frame_size`.
        planned: frames to reserve memory for; may be wrong.
        progress: called after every batch with the number of frames encoded so far.
    """
    per_slice = encoder.frames_per_token
    # numpy can grow an array in place; joining parts, or resizing a torch tensor, would need the memory twice
    buffer: np.ndarray | None = None
    dtype: torch.dtype | None = None  # of the result if the encoder returns tensors
    times: list[np.ndarray] = []
    filled = done = 0
    batches: Iterable[Frames] = group_frames(frames, per_slice)
    if hasattr(encoder, "join"):
        encoder.forget()  # type: ignore[attr-defined]
        batches = encoder.join(batches)
    for batch in batches:
        tokens = encoder(batch.pixels)  # [B / per_slice, H, W, D]
        if isinstance(tokens, torch.Tensor):
            dtype = tokens.dtype
            # numpy has no bfloat16, so it is stored as int16
            tokens = (tokens.view(torch.int16) if dtype == torch.bfloat16 else tokens).cpu().numpy()
        end = filled + len(tokens)
        if buffer is None:  # untouched pages of it cost no memory
            slices = min(-(-planned // per_slice), RESERVED_BYTES // (tokens.nbytes // len(tokens))) if planned else 0
            buffer = np.empty((max(slices, end), *tokens.shape[1:]), tokens.dtype)
        elif end > len(buffer):  # by an eighth: few moves, and little excess, since numpy writes zeros to all of it
            buffer.resize((max(end, len(buffer) * 9 // 8), *tokens.shape[1:]), refcheck=False)
        buffer[filled:end] = tokens
        filled = end
        times.append(batch.times_s[::per_slice])
        done += len(batch.times_s)
        if progress is not None:
            progress(done)
    if buffer is None:
        raise ValueError("no frames to encode: the video is empty")
    buffer.resize((filled, *buffer.shape[1:]), refcheck=False)
    return VideoTokens(buffer if dtype is None else torch.from_numpy(buffer).view(dtype), np.concatenate(times))


def group_frames(frames: Iterable[Frames], size: int) -> Iterator[Frames]:
    """Regroup frames into batches that are multiples of `size`; repeat the pixels of the last frame to fill up."""
    shape = None
    rest: Frames | None = None  # fewer than `size` frames
    for batch in frames:
        require_rgb(batch.pixels)
        count = len(batch.pixels)
        if len(batch.times_s) != count:
            raise ValueError(f"every frame needs a time, got {count} frames and {len(batch.times_s)} times")
        if shape is not None and batch.pixels.shape[1:] != shape:
            raise ValueError(f"all frames of a video must have one size, got {batch.pixels.shape[1:]} after {shape}")
        if not count:
            continue
        shape = batch.pixels.shape[1:]
        if rest is not None:
            batch = Frames(np.concatenate([rest.pixels, batch.pixels]), np.concatenate([rest.times_s, batch.times_s]))
        whole = len(batch.pixels) // size * size
        # a copy, so that the batch can be freed
        rest = Frames(batch.pixels[whole:].copy(), batch.times_s[whole:]) if whole < len(batch.pixels) else None
        if whole:
            yield Frames(batch.pixels[:whole], batch.times_s[:whole])
    if rest is not None:
        repeated = rest.pixels[-1:].repeat(size - len(rest.pixels), 0)
        yield Frames(np.concatenate([rest.pixels, repeated]), rest.times_s)  # times of real frames only


def require_multiples(pixels: np.ndarray, side: int) -> None:
    """Raise ValueError unless the sides of frames [B, height, width, 3] uint8 are multiples of `side` pixels."""
    require_rgb(pixels)
    height, width = pixels.shape[1:3]
    if height % side or width % side or not height or not width:
        problem = f"the sides of a frame must be multiples of {side} pixels, got {width} x {height}"
        raise ValueError(f"{problem}; use encoder.frame_size")


def require_rgb(pixels: np.ndarray) -> None:
    """Raise ValueError unless frames are [B, height, width, 3] uint8."""
    if pixels.ndim != 4 or pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"frames must be [B, height, width, 3] uint8 RGB, got {pixels.shape} {pixels.dtype}")
