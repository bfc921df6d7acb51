"""How a processor prepared a video, as a file records it: replaying needs the same prompt, and the same preparation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from floc._checked_file import Fields
from floc._checks import require, shorten
from floc.video.choice import VideoFacts

MOST_FRAMES, MOST_PIXELS = 1 << 24, 1 << 26  # of a video, of a frame
MOST_TAKEN = 1 << 20  # frames that are taken of a video


@dataclass(frozen=True, eq=False)
class Preparation:
    """The settings of a processor, and the frames that it took of a video."""

    processor: str  # class of the video processor
    settings: Mapping[str, Any]  # that shape pixels and grids
    facts: VideoFacts
    indices: np.ndarray  # [F] int64, the frames that it took
    size: list[int] | None = None  # height and width of a resized frame, if they depend on the number of frames
    fps: float | None = None  # the rate that it was asked for; None if its own
    taken: int | None = None  # how many frames it took of the whole video, if `indices` are a part of them

    def as_dict(self) -> dict[str, Any]:
        """Return the preparation for a JSON file."""
        facts = self.facts
        video = [facts.frames, facts.fps, facts.width, facts.height]
        values = {"processor": self.processor, "settings": dict(self.settings), "video": video}
        part = {} if self.taken is None else {"taken": self.taken}
        return {**values, "size": self.size, "fps": self.fps, **part, "indices": self.indices.tolist()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preparation":
        """Read a preparation from a file, with a check of every value."""
        fields = Fields(dict(values), "preparation")
        frames, fps, width, height = fields.numbers("video", 4, 1e-6, MOST_FRAMES)
        given = f"preparation: no video has {shorten(values['video'])} frames, rate, width and height"
        require(min(frames, width, height) >= 1 and width * height <= MOST_PIXELS, given)
        facts = VideoFacts(int(frames), fps, int(width), int(height))
        numbers: Any = values.get("indices")
        is_list = isinstance(numbers, list) and 0 < len(numbers) <= MOST_TAKEN and set(map(type, numbers)) == {int}
        is_valid = is_list and min(numbers) >= 0 and max(numbers) < facts.frames
        require(is_valid, f"preparation: indices must be 1 to {MOST_TAKEN} numbers of frames, below {facts.frames}")
        indices = np.array(numbers, np.int64)
        require(not (np.diff(indices) < 0).any(), "preparation: indices must be ascending")
        size = fields.integers("size", 2, 1, MOST_PIXELS) if fields.has("size") else None
        require(size is None or size[0] * size[1] <= MOST_PIXELS, "preparation: the size of a frame is too large")
        rate = fields.number("fps", 1e-6, 1e6) if fields.has("fps") else None
        taken = fields.integer("taken", len(indices), MOST_TAKEN) if fields.has("taken") else None
        return cls(fields.text("processor"), fields.section("settings").values, facts, indices, size, rate, taken)

    def require_same(self, processor: str, settings: Mapping[str, Any]) -> None:
        """Raise ValueError if a processor with these settings would prepare the video differently."""
        # releases of transformers add settings
        changed = [name for name in settings if name in self.settings and settings[name] != self.settings[name]]
        if processor != self.processor:
            reason = f"by {shorten(self.processor)}, but this is {processor}"
        elif changed:
            name = changed[0]
            reason = f"with {name} {shorten(self.settings[name])}, but this processor has {shorten(settings[name])}"
        else:
            return
        raise ValueError(f"the video was prepared {reason}; use that processor, or capture the video again")
