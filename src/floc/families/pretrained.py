"""Load parts of a model from a folder or the hub, with errors that say what is missing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal


def load_part(part: Literal["config", "tokenizer", "processor"], source: str, purpose: str) -> Any:
    """Load the config, tokenizer or processor of a model; `purpose` names what needs transformers, for the error."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"{purpose} needs transformers: pip install 'floc-video[hf]'") from error
    loader = getattr(transformers, f"Auto{part.capitalize()}")
    try:
        return loader.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        wanted = f"a folder or hub id with a {part} that transformers {transformers.__version__} can load"
        raise ValueError(f"{source}: not {wanted} ({first_line(error)})") from error


def read_json(source: str, file: str, *, ignore_offline: bool = False) -> dict[str, Any]:
    """Read a JSON file of a model; return {} if it has none or, with `ignore_offline`, the hub cannot be reached."""
    from transformers.utils import cached_file

    errors = {"missing_entries": False, "connection_errors": not ignore_offline}  # which to raise
    path = cached_file(source, file, **{f"_raise_exceptions_for_{kind}": raises for kind, raises in errors.items()})
    return {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


@contextmanager
def hide_progress(*, hide_warnings: bool = False) -> Iterator[None]:
    """Hide the progress bars of transformers, and optionally its warnings."""
    from transformers.utils import logging

    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if hide_warnings:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
