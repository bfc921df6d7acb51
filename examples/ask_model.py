"""Ask a video model with one token in eight: `python examples/ask_model.py MODEL talk.mp4 "What is on the table?"`."""

import sys
from typing import Any

from transformers import AutoModelForImageTextToText, AutoProcessor

import floc


def main(name: str, path: str, question: str) -> None:
    """Capture the video once, then answer without pixels and without the vision encoder."""
    model: Any = AutoModelForImageTextToText.from_pretrained(name, dtype="auto", device_map="auto")
    processor: Any = AutoProcessor.from_pretrained(name)
    video = floc.capture(model, path, processor=processor, ratio=1 / 8)
    print(f"kept {len(video)} of {video.n} tokens")
    inputs = video.inputs(processor, question).to(model.device)
    with floc.replay(model, video):
        ids = model.generate(**inputs, max_new_tokens=64)
    print(processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    main(*sys.argv[1:4])
