"""What a case may end in, and how an exception is judged."""

from __future__ import annotations

import dis
import re
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

REFUSED, VALID = "refused", "valid"
WRONG = ("crash", "hang", "memory", "traceback", "unclear", "invalid")
MEANINGS = {
    REFUSED: "refused with a clear error",
    VALID: "accepted, and the result is valid",
    "crash": "the process died",
    "hang": "no answer in the time limit",
    "memory": "more memory than the limit",
    "traceback": "an exception that callers do not expect",
    "unclear": "an error without a clear message",
    "invalid": "accepted, but the result is invalid",
}
EXPECTED = (ValueError, TypeError, OSError, MemoryError)  # what public functions raise for bad input
PACKAGE = str(Path("src") / "floc")


@dataclass(frozen=True)
class Outcome:
    """How one case ended."""

    verdict: str  # a key of MEANINGS
    reason: str = ""  # the message, or what is wrong
    place: str = ""  # where an exception was raised
    what: str = ""  # the input, in a few words
    seconds: float = 0.0
    peak_bytes: int = 0  # over what the process had before

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    @property
    def signature(self) -> tuple[str, str, str]:
        """Identify a defect: cases with the same signature are probably one defect."""
        text = self.place or "".join(letter for letter in self.reason if not letter.isdigit())[:80]
        return self.verdict, self.reason.split(":")[0][:40] if self.place else "", text


class Invalid(Exception):
    """An accepted input gave an invalid result."""


class Refused(Exception):
    """A part of the input was refused clearly, which the caller has judged already."""


def require(is_true: Any, message: str) -> None:
    """Raise Invalid unless a property of a result holds."""
    if not is_true:
        raise Invalid(message)


def judge_error(error: BaseException, mentions: str | None = None) -> Outcome:
    """Judge an exception that a public function raised.

    Args:
        error: The exception.
        mentions: Text that a clear message has to contain, such as the name of the file.
    """
    place = _find_place(error.__traceback__)
    reason = f"{type(error).__name__}: {str(error)[:300]}"
    if isinstance(error, Refused):
        return Outcome(REFUSED, str(error)[:300])
    if isinstance(error, Invalid):
        return Outcome("invalid", str(error)[:300])
    if not isinstance(error, EXPECTED):
        return Outcome("traceback", reason, place)
    is_ours = type(error).__module__ == "builtins" or type(error).__module__.startswith("floc")
    if not is_ours or isinstance(error, UnicodeError) or not _is_raised_by_package(error):
        return Outcome("unclear", f"{reason} (not raised by floc)", place)
    if len(str(error)) < 10:
        return Outcome("unclear", reason, place)
    if mentions is not None and mentions not in str(error):
        return Outcome("unclear", f"{reason} (does not mention {mentions})", place)
    return Outcome(REFUSED, reason, place)


def _find_place(trace: TracebackType | None) -> str:
    """Return the innermost place inside the package: file:line function."""
    inside = [frame for frame in traceback.extract_tb(trace) if PACKAGE in frame.filename]
    if not inside:
        return ""
    name = inside[-1].filename.rpartition(PACKAGE)[2].lstrip("/")
    return f"{name}:{inside[-1].lineno} {inside[-1].name}"


def _is_raised_by_package(error: BaseException) -> bool:
    """Return whether a `raise` statement of the package raised the error, or Python did for a wrong call."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    if isinstance(error, TypeError) and re.search(r"\(\) (missing|got an unexpected|got multiple|takes) ", str(error)):
        return True  # Python names the argument, also inside a decorator of the package
    if PACKAGE not in trace.tb_frame.f_code.co_filename:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] in (dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"])
