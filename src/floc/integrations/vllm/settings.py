"""What a user asked for: how many tokens to keep of a video, and by which method.

The count has to be known before there are embeddings, since vLLM writes the placeholders first. So it is a ratio or a
number of tokens, never a coverage, and the method has to reach any count exactly.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from floc import methods
from floc._checks import check_choice
from floc.budget import Budget
from floc.captured.recipe import Recipe

LOG = logging.getLogger("vllm.floc")  # shown as vLLM shows its own
OURS = ("ratio", "tokens", "method", "record")  # all else is an option of the method


@dataclass(frozen=True)
class Settings:
    """The part "floc" of vLLM's `--additional-config`."""

    ratio: float | str | None = None
    tokens: int | None = None  # to keep of every video
    method: str = "floc"
    options: Mapping[str, Any] = field(default_factory=dict)
    record: str | None = None  # a file that gets a line of JSON for each video that was chosen from

    def __post_init__(self) -> None:
        require_selecting(self.method)
        if not isinstance(self.record, str | None):
            raise TypeError(f"record must be the path of a file, got {self.record!r}")
        for option in self.options:
            check_choice("setting", option, [*OURS, *methods.options(self.method)])
        if (self.ratio, self.tokens) != (None, None):
            self.recipe  # noqa: B018  complains of what is wrong with it

    @classmethod
    def of(cls, given: object) -> Settings:
        """From a dictionary, as `--additional-config` has it.

        >>> Settings.of({"tokens": 512, "block": 16})
        Settings(ratio=None, tokens=512, method='floc', options={'block': 16}, record=None)
        """
        if not isinstance(given, Mapping):
            raise ValueError(f'floc in --additional-config must be settings such as {{"ratio": "1/8"}}, got {given!r}')
        ours = {name: value for name, value in given.items() if name in OURS}
        return cls(**ours, options={name: value for name, value in given.items() if name not in OURS})

    def at_rate(self, rate: float | None) -> Settings:
        """With the count that vLLM's `--video-pruning-rate` asks for, where these settings have none.

        >>> Settings().at_rate(0.9).count(1000), Settings(tokens=64).at_rate(None).count(1000)
        (100, 64)
        """
        if not rate:
            return self
        asked = Budget.parse(1 - rate, None, None).ratio
        if self.tokens is not None or (self.ratio is not None and Budget.parse(self.ratio, None, None).ratio != asked):
            said = f"tokens={self.tokens}" if self.tokens is not None else f"ratio={self.ratio}"
            raise ValueError(
                f"--video-pruning-rate {rate:g} keeps {asked} of the tokens, and floc was told {said}; give one of them"
            )
        return Settings(str(asked), None, self.method, self.options, self.record)

    def __str__(self) -> str:
        """For a log.

        >>> print(Settings(tokens=512, options={"block": 16}))
        512 tokens of every video, chosen by floc with block=16
        """
        count = f"{self.tokens} tokens" if self.tokens is not None else f"{self.ratio} of the tokens"
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{count} of every video, chosen by {self.method}" + (f" with {options}" if options else "")

    def as_json(self) -> dict[str, Any]:
        """What `of` takes."""
        ours = {name: getattr(self, name) for name in OURS}
        return {**{name: value for name, value in ours.items() if value is not None}, **self.options}

    @property
    def has_count(self) -> bool:
        """Whether it is said how many tokens to keep."""
        return (self.ratio, self.tokens) != (None, None)

    @property
    def rate(self) -> float:
        """The pruning rate to tell vLLM, which only asks whether there is one."""
        kept = Fraction(1, 2) if self.ratio is None else Budget.parse(self.ratio, None, None).ratio
        assert kept is not None
        return float(1 - kept)

    @property
    def recipe(self) -> Recipe:
        """What runs, the same as in `floc.attach`."""
        return Recipe(self.ratio, self.tokens, None, self.method, self.options)

    def count(self, tokens: int) -> int:
        """How many of so many tokens of a video are kept."""
        return self.recipe.count(tokens)

    @property
    def salt(self) -> str:
        """What tells caches of videos apart that were made with other settings, or another release."""
        from floc._version import __version__

        told = json.dumps([__version__, self.ratio, self.tokens, self.method, dict(self.options)], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def require_selecting(method: str) -> None:
    """Complain of a method that merges tokens, or keeps as many as it likes."""
    known = methods.facts(method)
    if _fits(known):
        return
    why = "merges tokens" if known.kind == "merge" else f"keeps at least {known.floor}"
    fit = ", ".join(name for name in methods.names() if _fits(methods.facts(name)))
    raise ValueError(f"vLLM needs a method that keeps any number of tokens, and {method!r} {why}; take one of {fit}")


def _fits(known: methods.Facts) -> bool:
    return known.kind == "select" and known.exact and not known.floor
