"""Load parts of a model from a folder or the hub, with errors that say what is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal


def load_part(part: Literal["config", "processor"], source: str, purpose: str) -> Any:
    """Load the config or the processor of a model; `purpose` names what needs transformers, for the error."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"{purpose} needs transformers: pip install 'floc-video[hf]'") from error
    loader = transformers.AutoConfig if part == "config" else transformers.AutoProcessor
    try:
        return loader.from_pretrained(source)
    except ImportError as error:  # of torchvision, or of a package that only this processor needs
        name = "torchvision" if "torchvision" in str(error).lower() else first_line(error)
        raise ImportError(f"{source}: its {part} needs {name}: pip install 'floc-video[hf]'") from error
    except (OSError, ValueError, KeyError) as error:
        wanted = f"a folder or hub id with a {part} that transformers {transformers.__version__} can load"
        raise ValueError(f"{source}: not {wanted} ({first_line(error)})") from error


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
