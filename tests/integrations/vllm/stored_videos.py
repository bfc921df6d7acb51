"""Videos captured with transformers, for engines that answer from them, and what `floc.replay` answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

import floc
from floc.captured.captured import Captured


def write_frames(path: Path, frames: np.ndarray, fps: int) -> Path:
    """Write [F, height, width, 3] frames without loss."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=fps)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "bgr0"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())
    return path


def place_text_as_vllm(model: Any) -> None:
    """Let the text after a prompt's only video start behind the video's last position, as vLLM does.

    In transformers, it starts as many positions after the video's first as a frame has rows or columns.
    """
    find = model.model.get_rope_index

    def find_as_vllm(input_ids: Any, mm_token_type_ids: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        positions, _ = find(input_ids, mm_token_type_ids, *args, **kwargs)
        is_video = mm_token_type_ids[0] == 2
        end = int(is_video.nonzero()[-1]) + 1
        positions[:, 0, end:] += positions[:, 0, :end].max() + 1 - positions[0, 0, end]
        return positions, (positions.max() + 1 - input_ids.shape[1]).view(1, 1)

    model.model.get_rope_index = find_as_vllm


@dataclass
class Replayed:
    """What `floc.replay` does with a question about a captured video."""

    prompt: list[int]  # ids of the tokens that the decoder reads
    positions: list[tuple[int, ...]]  # of each of them
    logprobs: torch.Tensor  # of the first token of the answer
    answer: list[int]


@torch.no_grad()
def replay(model: Any, processor: Any, video: Captured, question: str) -> Replayed:
    """Ask a model of transformers about a captured video."""
    inputs = video.inputs(processor, question)
    ids = inputs["input_ids"][0]
    stays = torch.ones(len(ids), dtype=torch.bool)
    columns = (ids == model.config.video_token_id).nonzero()[:, 0]
    stays[columns] = False
    stays[columns[video.indices]] = True
    given = {name: value for name, value in inputs.items() if name != "input_ids"}
    positions, _ = model.model.get_rope_index(inputs["input_ids"], **given)
    settings = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": -1}
    with floc.replay(model, video):
        output = model.generate(**inputs, **settings, return_dict_in_generate=True, output_logits=True)
    columns_first = [tuple(column) for column in positions[:, 0, stays].T.tolist()]
    answer = output.sequences[0, len(ids) :].tolist()
    return Replayed(ids[stays].tolist(), columns_first, output.logits[0][0].log_softmax(-1), answer)


def spoil(video: Captured, folder: Path) -> dict[str, str]:
    """Write files that no engine may take; return the error that each must cause."""
    preparation = video.made["preparation"]

    def change_preparation(**changes: Any) -> Captured:
        return replace(video, made={**video.made, "preparation": {**preparation, **changes}})

    settings = {**preparation["settings"], "image_mean": [0.1, 0.2, 0.3]}
    frames, _, width, height = preparation["video"]
    slices = video.shape[0]
    wide = replace(video.model, hidden_size=2 * video.model.hidden_size)
    spoiled = {
        "config": (replace(video, model=replace(video.model, config="0" * 16)), "but the model is"),
        "kind": (replace(video, model=replace(video.model, kind="qwen3_vl")), "but the model is"),
        "weights": (
            replace(video, model=replace(video.model, weights=[2 * x + 1 for x in video.model.weights])),
            "the vision encoder of this model has other weights",
        ),
        "settings": (change_preparation(settings=settings), "was prepared with image_mean"),
        "processor": (change_preparation(processor="OtherVideoProcessor"), "was prepared by 'OtherVideoProcessor'"),
        "unknown": (replace(video, made={"method": "floc"}), "is unknown; capture it"),
        "deep": (replace(video, deep=(video.features.clone(),)), "deep layers"),
        "wide": (replace(video, model=wide, features=torch.cat([video.features] * 2, 1)), "values of a token"),
        "slow": (change_preparation(video=[frames, 1e-6, width, height]), "its last frame is at position"),
        "large": (replace(video, shape=(slices, 1 << 12, 1 << 12)), "tokens, a server takes"),
    }
    for name, (changed, _) in spoiled.items():
        changed.save(folder / f"{name}.floc")
    errors = {name: error for name, (_, error) in spoiled.items()}
    data = (folder / "config.floc").read_bytes()
    (folder / "short.floc").write_bytes(data[: len(data) // 2])
    (folder / "header.floc").write_bytes(b"\xff" * 64 + data[64:])
    (folder / "empty.floc").write_bytes(b"")
    damaged = dict.fromkeys(("short", "header", "empty"), "not a .floc file, or damaged")
    return {**errors, **damaged, "missing": "no such stored video"}
