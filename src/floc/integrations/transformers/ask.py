"""Ask a model about a video: the work of `floc ask`."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from floc.captured.captured import Captured
from floc.captured.pieces import StageTimer
from floc.encoders.base import default_device
from floc.families import find_family
from floc.families.pretrained import first_line, hide_progress, load_part
from floc.families.processing import check_match, check_processor
from floc.integrations.transformers.capture import capture
from floc.integrations.transformers.question import embed_text
from floc.integrations.transformers.replay import replay
from floc.planning.planner import ContextWarning

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
        config = load_part("config", source, "asking a model")
        find_family(config)
        self.processor = load_part("processor", source, "asking a model")  # before the weights: errors show early
        check_processor(self.processor)
        check_match(self.processor, getattr(config, "thinker_config", config))
        import transformers

        target = device or default_device()
        try:
            with hide_progress():
                model: Any = transformers.AutoModelForImageTextToText.from_pretrained(source, dtype="auto")
            self.model = model.to(target).eval()
        except (OSError, ValueError) as error:
            message = f"{source}: its weights cannot be loaded ({first_line(error)}); it needs .safetensors files"
            raise ValueError(message) from error
        except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
            raise ValueError(f"{source}: the model cannot be moved to {target!r}: {first_line(error)}") from error

    def capture(self, video: Any, **settings: Any) -> Captured:
        """Capture a video; arguments are those of `floc.capture`."""
        if self.model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.model.device)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ContextWarning)  # an answer to half a prompt would be wrong
            try:
                return capture(self.model, video, processor=self.processor, **settings)
            except ContextWarning as error:
                raise ValueError(str(error)) from None

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
