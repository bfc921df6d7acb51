"""Ask a model about a video: the work of `floc ask`."""

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from floc.budget import Budget
from floc.captured.captured import Captured
from floc.captured.pieces import StageTimer
from floc.encoders.base import choose_device
from floc.families.frame_size import limit_frame_tokens
from floc.families.pretrained import first_line, hide_progress
from floc.families.processing import VideoPreparer, load_processor
from floc.integrations.transformers.capture import capture
from floc.integrations.transformers.question import embed_text
from floc.integrations.transformers.replay import replay
from floc.planning import ModelCosts, describe_plan
from floc.planning.costs import build_without_weights
from floc.planning.planner import ContextWarning, check_context
from floc.video import read_facts

STAGES = (
    "decode",
    "compare",
    "preprocess",
    "vision",
    "select",
    "other",
    "prefill",
    "answer",
)  # as a summary lists them


class Session:
    """A model of a folder or hub id with its processor, for questions about videos."""

    def __init__(self, source: str, device: str | None = None) -> None:
        self.source, self.device = source, choose_device(device)
        self.config, self.processor = load_processor(source, "asking a model")

    @functools.cached_property
    def model(self) -> Any:
        """The model with its weights, which take minutes to load: all else is checked first."""
        import transformers

        try:
            with hide_progress():
                model: Any = transformers.AutoModelForImageTextToText.from_pretrained(self.source, dtype="auto")
            return model.to(self.device).eval()
        except (OSError, ValueError) as error:
            message = f"{self.source}: its weights cannot be loaded ({first_line(error)}); it needs .safetensors files"
            raise ValueError(message) from error
        except RuntimeError as error:  # out of memory
            problem = f"the model cannot be moved to {str(self.device)!r}: {first_line(error)}"
            raise ValueError(f"{self.source}: {problem}") from error

    def capture(self, video: Path, **settings: Any) -> Captured:
        """Capture a video; arguments are those of `floc.capture`, but a prompt beyond the context is an error."""
        if not settings.get("more_frames"):
            self._check_before_loading(video, settings)
        if self.model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.model.device)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ContextWarning)  # an answer to half a prompt would be wrong
            try:
                return capture(self.model, video, processor=self.processor, **settings)
            except ContextWarning as error:
                raise ValueError(str(error)) from None

    def _check_before_loading(self, video: Path, settings: Mapping[str, Any]) -> None:
        """Raise ValueError if the processor refuses a video, or its prompt is longer than the model's context."""
        preparer, limit = VideoPreparer(self.processor), settings.get("frame_tokens")
        plan = preparer.plan(read_facts(video), fps=settings.get("fps"), max_frames=settings.get("max_frames"))
        plan = plan if limit is None else limit_frame_tokens(preparer, plan, limit)
        given = [settings.get(name) for name in ("ratio", "budget", "coverage")]
        if given != [None] * 3:  # else the method decides
            costs = ModelCosts.from_model(build_without_weights(self.config))
            for problem in check_context(describe_plan(preparer, plan, costs, Budget.parse(*given), self.device)):
                raise ValueError(problem)

    def steer(
        self, video: Captured, question: str, weight: float, ratio: float | str | None = None, budget: int | None = None
    ) -> Captured:
        """Return some of a captured video's tokens, selected again for a question."""
        query = embed_text(self.model, self.processor, question)
        return video.at(ratio=ratio, budget=budget, query=query, query_weight=weight)

    @torch.no_grad()
    def ask(
        self, video: Captured, question: str, max_new_tokens: int, on_text: Callable[[str], object]
    ) -> dict[str, Any]:
        """Ask one question about a captured video; `on_text` is called with parts of the answer as they are generated.

        Returns:
            The answer, the tokens of the prompt before and after compression, seconds by stage ("prefill" ends with the
            first token) and peak memory; JSON-serialisable.
        """
        from transformers import TextStreamer

        timer = StageTimer(self.model.device)
        prefill, decoding = timer.measure("prefill"), timer.measure("answer")

        class TimedStreamer(TextStreamer):
            """Ends the prefill at the first token, and passes text on."""

            tokens = -1  # the prompt is put first

            def put(self, value: torch.Tensor) -> None:
                self.tokens += 1
                if self.tokens == 1:
                    prefill.__exit__(None, None, None)
                    decoding.__enter__()
                super().put(value)

            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                on_text(text)

        tokenizer = self.processor.tokenizer
        inputs = video.inputs(self.processor, question).to(self.model.device)
        streamer = TimedStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        with replay(self.model, video):
            prefill.__enter__()
            ids = self.model.generate(**inputs, max_new_tokens=max_new_tokens, streamer=streamer, do_sample=False)
            decoding.__exit__(None, None, None)
        length = inputs["input_ids"].shape[1]
        stages = {name: value for name, value in video.made.get("seconds", {}).items() if name != "total"}
        seconds = {**stages, **timer.seconds}
        return {
            "question": question,
            "answer": tokenizer.decode(ids[0, length:], skip_special_tokens=True),
            "prompt_tokens": length,
            "read_tokens": length - video.n + len(video),
            "answer_tokens": ids.shape[1] - length,
            "seconds": {name: seconds[name] for name in sorted(seconds, key=_rank_stage)},
            "tokens": video.n,
            "kept": len(video),
            "peak_bytes": _peak_bytes(self.model.device),
        }


def _rank_stage(name: str) -> int:
    """Return the place of a stage in a summary; stages that are not listed come last, in the order they ran."""
    return STAGES.index(name) if name in STAGES else len(STAGES)


def _peak_bytes(device: torch.device) -> int | None:
    """Return the peak memory: of the tensors on a GPU, else of the process; None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
