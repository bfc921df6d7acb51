"""Ask a model about a video: `floc ask`."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from floc import methods
from floc.captured.captured import Captured
from floc.encoders.base import default_device
from floc.encoders.vision_tower import config_of
from floc.integrations.transformers import prompts
from floc.integrations.transformers.capture import capture
from floc.integrations.transformers.families import family_of
from floc.integrations.transformers.replay import replay
from floc.integrations.transformers.stages import Stages


@dataclass(frozen=True)
class Reply:
    """An answer, and what it cost."""

    question: str
    answer: str
    prompt_tokens: int  # of the whole prompt, before tokens were dropped
    read_tokens: int  # that the language model read
    answer_tokens: int
    seconds: dict[str, float]  # prefill, until the first token is there, and answer, all others


def load_model(source: str, device: str | None = None) -> Any:
    """A video model from a folder or hub id, ready to answer, or an error that says what is missing."""
    family_of(config_of(source, "asking a model"))
    import transformers
    from transformers.utils import logging

    place = device or default_device()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model: Any = transformers.AutoModelForImageTextToText.from_pretrained(source, dtype="auto")
        return model.to(place).eval()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{source}: its weights cannot be loaded ({_first_line(error)}); the folder needs the model's "
            ".safetensors files"
        ) from error
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that it is there
        raise ValueError(f"{source}: the model cannot be put on {place!r}: {_first_line(error)}") from error
    finally:
        if bars:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@torch.no_grad()
def ask(
    model: Any,
    tokenizer: Any,
    video: Captured,
    question: str,
    *,
    history: Sequence[tuple[str, str]] = (),
    max_new_tokens: int = 256,
    on_text: Callable[[str], object] = lambda text: None,
) -> Reply:
    """One question about a video that was captured.

    Args:
        model: the one it was captured with.
        tokenizer: the model's.
        video: from `floc.capture` or `floc.load`.
        question: what to ask.
        history: earlier questions with their answers.
        max_new_tokens: where an answer ends at the latest.
        on_text: called with the answer piece by piece.
    """
    from transformers import TextStreamer

    stages = Stages(model.device)
    prefill, rest = stages.stage("prefill"), stages.stage("answer")

    class Listener(TextStreamer):
        """Tells the first token from the others, and passes text on as it comes."""

        tokens = -1  # the prompt comes first

        def put(self, value: torch.Tensor) -> None:
            self.tokens += 1
            if self.tokens == 1:
                prefill.__exit__(None, None, None)
                rest.__enter__()
            super().put(value)

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            on_text(text)

    inputs = video.inputs(model, tokenizer, question, history)
    listener = Listener(tokenizer, skip_prompt=True, skip_special_tokens=True)
    with replay(model, video):
        prefill.__enter__()
        ids = model.generate(**inputs, max_new_tokens=max_new_tokens, streamer=listener, do_sample=False)
        rest.__exit__(None, None, None)
    whole = inputs["input_ids"].shape[1]
    answer = tokenizer.decode(ids[0, whole:], skip_special_tokens=True)
    return Reply(question, answer, whole, whole - video.n + len(video), ids.shape[1] - whole, stages.seconds)


class Session:
    """A model that is asked about videos, and what it costs."""

    def __init__(self, source: str, device: str | None = None) -> None:
        self.source = source
        self.tokenizer = prompts.tokenizer(source)  # what is wrong with it shows before weights are loaded
        self.model = load_model(source, device)

    def take(self, video: Captured) -> Captured:
        """A video that was captured before."""
        return replace(video, made={**video.made, "seconds": {}})  # none of that is spent now

    def capture(
        self,
        path: Path,
        dial: dict[str, Any],
        spec: methods.Spec,
        fps: float | None,
        max_frames: int | None,
        progress: Callable[[float], None],
    ) -> Captured:
        """Look at a video."""
        _forget_peak(self.model.device)
        return capture(
            self.model,
            path,
            **dial,
            method=spec.method,
            fps=fps,
            max_frames=max_frames,
            source=self.source,
            progress=progress,
            **spec.options,
        )

    def ask(
        self, video: Captured, question: str, max_new_tokens: int, on_text: Callable[[str], object]
    ) -> dict[str, Any]:
        """One question: what was answered, and all that there is to say of it, as JSON takes it."""
        reply = ask(self.model, self.tokenizer, video, question, max_new_tokens=max_new_tokens, on_text=on_text)
        looked = {name: each for name, each in video.made.get("seconds", {}).items() if name != "total"}
        return {
            **asdict(reply),
            "tokens": video.n,
            "kept": len(video),
            "seconds": {**looked, **reply.seconds},
            "peak_bytes": peak_bytes(self.model.device),
        }


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """The most memory that was in use: of a GPU what its tensors took, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
