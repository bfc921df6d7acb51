"""The plugin's settings: how many tokens to keep of each video, and which method selects them.

vLLM writes placeholders before it computes embeddings, so the number of kept tokens must follow from the size of the
video alone. That allows a ratio or a budget, but no coverage, and only methods that keep any count exactly.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from floc import _version, methods
from floc._checks import check_choice, shorten
from floc.budget import Budget
from floc.captured.recipe import Recipe

LOG = logging.getLogger("vllm.floc")  # a child of vLLM's logger, so it has the same handlers and format
# every other key is an option of the method
FIELDS = ("ratio", "budget", "images", "positions", "method", "record", "stored")
OF_REQUESTS = ("ratio", "tokens", "budget", "images")  # what a request may set; "tokens" is another name of "budget"


@dataclass(frozen=True)
class Settings:
    """The "floc" object of vLLM's `--additional-config`."""

    ratio: float | str | None = None
    budget: int | None = None  # number of tokens to keep of every video
    images: float | str | None = None  # ratio to keep of every picture; None keeps all
    positions: str = "keep"  # "compact": counted over the kept tokens, in models with plain positions
    method: str = "floc"
    options: Mapping[str, Any] = field(default_factory=dict)
    record: str | None = None  # file that gets one line of JSON per compressed video
    stored: Sequence[str] | None = None  # folders of stored videos that requests may name

    def __post_init__(self) -> None:
        if not _keeps_any_count(self.method):
            info = methods.get_info(self.method)
            reason = "merges tokens" if info.kind == "merge" else f"keeps at least {info.floor}"
            usable = ", ".join(filter(_keeps_any_count, methods.list_methods()))
            needed = "vLLM needs a method that keeps any number of tokens"
            raise ValueError(f"{needed}, but {self.method!r} {reason}; use one of {usable}")
        check_choice("positions", self.positions, ("keep", "compact"))
        if not isinstance(self.record, str | None):
            raise TypeError(f"record must be a file path, got {self.record!r}")
        if self.stored is not None and not (isinstance(self.stored, list) and all(map(_is_text, self.stored))):
            raise TypeError(f"stored must be a list of folders, got {self.stored!r}")
        for option in self.options:
            check_choice("setting", option, [*FIELDS, *methods.list_options(self.method)])
        if self.has_count:
            self.recipe  # noqa: B018  validates the count and the options
        if self.images is not None:
            if self.positions == "compact":
                raise ValueError(f"models with compact positions keep whole pictures; remove images={self.images!r}")
            try:
                Budget.parse(self.images, None, None)
            except ValueError as error:
                raise ValueError(f"images: {error}") from None

    @classmethod
    def from_dict(cls, given: object) -> "Settings":
        """Parse the object that `--additional-config` holds.

        >>> settings = Settings.from_dict({"budget": 512, "block": 16})
        >>> settings.budget, settings.options
        (512, {'block': 16})
        """
        if not isinstance(given, Mapping):
            raise ValueError(f'floc in --additional-config must be an object such as {{"ratio": "1/8"}}, got {given!r}')
        fields = {name: value for name, value in given.items() if name in FIELDS}
        return cls(**fields, options={name: value for name, value in given.items() if name not in FIELDS})

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `from_dict` parses."""
        fields = {name: getattr(self, name) for name in FIELDS}
        return {**{name: value for name, value in fields.items() if value is not None}, **self.options}

    def for_request(self, given: object) -> "Settings":
        """Return the settings for a request that gives `mm_processor_kwargs={"floc": given}`.

        >>> settings = Settings(ratio="1/8", images="1/4")
        >>> settings.for_request({"tokens": 64}).count(1000), settings.for_request(False).count(1000)
        (64, 1000)
        """
        if given is None:
            return self
        if given is False:
            return replace(self, ratio=1, budget=None, images=None)
        example = '{"floc": {"ratio": "1/16"}}, {"floc": {"tokens": 512}} or {"floc": false}'
        try:
            if not isinstance(given, Mapping) or not given:
                raise ValueError(f"give {example}; got {shorten(given)}")
            for name in given:
                check_choice("setting of a request", name, OF_REQUESTS)
            if {"tokens", "budget"} <= given.keys():
                raise ValueError("tokens and budget are the same setting; give one")
            changes = {"budget" if name == "tokens" else name: value for name, value in given.items()}
            if changes.keys() & {"ratio", "budget"}:
                changes = {"ratio": None, "budget": None, **changes}
            if changes.get("images") is False:
                changes["images"] = None
            changed = replace(self, **changes)
            if not changed.has_count:
                raise ValueError(f"give {example}")
        except (TypeError, ValueError) as error:
            raise ValueError(f"floc in mm_processor_kwargs: {error}") from None
        return changed

    def with_rate(self, rate: float | None) -> "Settings":
        """Set the ratio to 1 - `rate`, the share that vLLM's `--video-pruning-rate` keeps. None changes nothing.

        >>> Settings().with_rate(0.9).count(1000), Settings(budget=64).with_rate(None).count(1000)
        (100, 64)
        """
        if not rate:
            return self
        ratio = Budget.parse(1 - rate, None, None).ratio
        if self.budget is not None or (self.ratio is not None and Budget.parse(self.ratio, None, None).ratio != ratio):
            own = f"budget={self.budget}" if self.budget is not None else f"ratio={self.ratio}"
            raise ValueError(f"--video-pruning-rate {rate:g} keeps {ratio} of the tokens, but floc has {own}; give one")
        return replace(self, ratio=str(ratio))

    def __str__(self) -> str:
        """Describe the settings for the log.

        >>> print(Settings(budget=512, options={"block": 16}))
        512 tokens of every video, selected by floc with block=16
        """
        share = "all tokens" if self.ratio == "1" else f"{self.ratio} of the tokens"
        count = share if self.budget is None else f"{self.budget} tokens"
        pictures = "" if self.images is None else f" and {self.images} of every picture"
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        chosen = f"{count} of every video{pictures}, selected by {self.method}" + (
            f" with {options}" if options else ""
        )
        return chosen + (f"; stored videos are in {', '.join(self.stored)}" if self.stored else "")

    @property
    def has_count(self) -> bool:
        """True if a ratio or a budget is set."""
        return (self.ratio, self.budget) != (None, None)

    @property
    def rate(self) -> float:
        """The pruning rate to pass to vLLM, which only checks whether it is above 0."""
        return (0.0 if self.ratio is None else float(1 - Fraction(self.ratio))) or 0.5

    @cached_property
    def recipe(self) -> Recipe:
        """The compression to run, the same as in `floc.attach`."""
        return Recipe(self.ratio, self.budget, None, self.method, self.options)

    def count(self, tokens: int, kind: str = "video") -> int:
        """Return how many of the `tokens` of a "video" or an "image" are kept."""
        if kind == "video":
            return self.recipe.count(tokens)
        return tokens if self.images is None else Budget.parse(self.images, None, None).count(tokens)

    @cached_property
    def salt(self) -> str:
        """A hash of everything that changes the embeddings of videos, for cache keys."""
        return self._hash(self.ratio, self.budget)

    def get_salt(self, kind: str) -> str:
        """Return a hash of everything that changes the embeddings of a "video" or an "image", for cache keys."""
        return self.salt if kind == "video" else self._hash(self.images or 1, None)

    def _hash(self, ratio: float | str | None, budget: int | None) -> str:
        exact = None if ratio is None else str(Budget.parse(ratio, None, None).ratio)  # 0.125 is 1/8
        key = [_version.__version__, exact, budget, self.method, dict(self.options)]
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _keeps_any_count(method: str) -> bool:
    info = methods.get_info(method)
    return info.kind == "select" and info.exact and not info.floor
