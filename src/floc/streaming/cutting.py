"""Where the blocks of a stream end: after so many frames here, where scenes do in `scenes.Running`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch


class Cutter(Protocol):
    """Says when the frames that wait are a block."""

    room: int  # frames that may wait

    def see(self, room: torch.Tensor, waiting: int) -> None:
        """Look at the first frames of a [room, H, W, D], those that wait; the last of them is new."""
        ...

    def complete(self, waiting: int) -> int:
        """How many of the frames that wait are a block; 0 where that cannot be told yet."""
        ...

    def forget(self, frames: int) -> None:
        """The first ones do not wait any more."""
        ...

    def rest(self, waiting: int) -> list[int]:
        """How many frames each block would have if no more came."""
        ...

    def about(self) -> dict[str, Any]:
        """What is saved of it, as JSON takes it."""
        ...

    def restore(self, about: Mapping[str, Any]) -> None:
        """Become what was saved."""
        ...


class Even:
    """Blocks of so many frames."""

    def __init__(self, frames: int) -> None:
        self.room = frames

    def see(self, room: torch.Tensor, waiting: int) -> None:
        pass

    def complete(self, waiting: int) -> int:
        return self.room if waiting == self.room else 0

    def forget(self, frames: int) -> None:
        pass

    def rest(self, waiting: int) -> list[int]:
        return [waiting] if waiting else []

    def about(self) -> dict[str, Any]:
        return {}

    def restore(self, about: Mapping[str, Any]) -> None:
        pass
