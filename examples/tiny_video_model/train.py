"""Train the model from scratch: `python -m examples.tiny_video_model.train -o out/tiny`.

The films get longer, from 8 to 64 frames. A second loss pulls visual tokens towards the embedding of the word for what
they show; it fades out. On a CPU the vision encoder is frozen for the longest films, where it costs most.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from examples.tiny_video_model.batches import Batch, BatchMaker
from examples.tiny_video_model.films import PLACES
from examples.tiny_video_model.model import make_model, make_tokenizer, write_processor
from examples.tiny_video_model.things import THINGS

# slices of a film, films in a batch, share of the time
STAGES = ((4, 24, 0.3), (8, 12, 0.3), (16, 8, 0.2), (32, 4, 0.2))
PEAK_RATE = 2e-3
AUXILIARY_UNTIL = 0.6  # share of the time after which the second loss is gone
ATTENTION = "flash_equal_windows"  # transformers passes the bounds of windows to functions with "flash" in their name


def _attend_windows(
    module: Any, query: Any, key: Any, value: Any, *, cu_seq_lens_q: Any, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attend within windows of equal length, all in one call: [1, heads, P, D] -> [1, P, heads, D]."""
    windows = len(cu_seq_lens_q) - 1
    _, heads, count, width = query.shape

    def split(states: torch.Tensor) -> torch.Tensor:
        return states[0].reshape(heads, windows, count // windows, width).transpose(0, 1)

    output = functional.scaled_dot_product_attention(split(query), split(key), split(value), scale=scaling)
    return output.transpose(1, 2).reshape(1, count, heads, width), None


@contextmanager
def batch_windows(model: Any) -> Iterator[None]:
    """Let the vision encoder compute all windows at once; a window is a slice here."""
    config = model.model.visual.config
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend_windows)
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


class Losses:
    """Compute the loss of a batch with the parts of the model, positions included."""

    def __init__(self, model: Any, tokenizer: Any):
        self._model, self._tokenizer = model, tokenizer
        words = [tokenizer.encode(f" {word}") for word in (*PLACES, *THINGS)]
        if any(len(word) != 1 for word in words):
            raise ValueError("each place and thing must be one token; train the tokenizer on all of them")
        self._words = torch.tensor(words, device=model.device)[:, 0]

    def compute(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the loss of the answers, the loss of the visual tokens, and the share of right answer tokens."""
        model = self._model
        visual = model.model.visual(batch.patches, grid_thw=batch.grid).pooler_output
        embedding = model.get_input_embeddings()
        embeds = embedding(batch.ids)
        is_video = batch.ids == model.config.video_token_id
        embeds = embeds.masked_scatter(is_video[..., None], visual.to(embeds.dtype))
        hidden = model.model.language_model(
            inputs_embeds=embeds,
            position_ids=self._find_positions(batch),
            attention_mask=self._make_mask(batch.segments, embeds.dtype),
            use_cache=False,
        ).last_hidden_state
        asked = batch.targets >= 0
        logits = model.lm_head(hidden[asked]).float()
        targets = batch.targets[asked]
        shown = functional.cross_entropy(
            visual.float() @ functional.normalize(embedding(self._words).float(), dim=-1).T, batch.labels.reshape(-1)
        )
        right = (logits.argmax(-1) == targets).float().mean()
        return functional.cross_entropy(logits, targets), shown, right

    def _find_positions(self, batch: Batch) -> torch.Tensor:
        """Return positions [3, B, L] as the model computes them for a video and one question."""
        first = batch.segments[:1] <= 1
        ids = batch.ids[:1, first[0] & (batch.segments[0] >= 0)]
        types = 2 * (ids == self._model.config.video_token_id).int()
        seconds = torch.ones(1)
        found, _ = self._model.model.get_rope_index(
            ids, types, video_grid_thw=batch.grid[:1], second_per_grid_ts=seconds
        )
        shared = int((batch.segments[0] == 0).sum())
        positions = found[:, 0, shared] + batch.offsets[..., None]  # [B, L, 3]
        positions[:, :shared] = found[:, 0, :shared].T
        return positions.permute(2, 0, 1)

    @staticmethod
    def _make_mask(segments: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return an additive mask [B, 1, L, L]: causal; a question sees the video and itself."""
        length = segments.shape[1]
        rows, columns = segments[:, :, None], segments[:, None, :]
        visible = ((columns == 0) | (columns == rows)) & torch.ones(length, length, dtype=torch.bool).tril()
        return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


def train(folder: Path, minutes: float, seed: int, resume: Path | None = None) -> None:
    """Train for a number of minutes and write the checkpoint."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    if resume is not None:
        model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(resume, dtype=torch.float32)
    model.train()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98))
    losses = Losses(model, tokenizer)
    started, log, step = time.monotonic(), [], 0
    with batch_windows(model):
        for stage, (slices, size, _) in enumerate(STAGES):
            maker = BatchMaker(tokenizer, slices, size, seed * 10**9 + stage * 10**8)
            end = sum(part for *_, part in STAGES[: stage + 1])
            model.model.visual.requires_grad_(slices < 32)
            smooth: dict[str, float] = {}
            while (progress := (time.monotonic() - started) / (60 * minutes)) < end:
                for group in optimizer.param_groups:
                    group["lr"] = PEAK_RATE * min(1, (step + 1) / 100) * (0.05 + 0.95 * _fall(progress))
                with torch.autocast("cpu", torch.bfloat16):
                    answers, shown, right = losses.compute(maker.make())
                    weight = max(0.0, 1 - progress / AUXILIARY_UNTIL)
                    loss = answers + weight * shown
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                step += 1
                for name, value in (("answers", answers), ("shown", shown), ("right", right)):
                    smooth[name] = 0.95 * smooth.get(name, value.item()) + 0.05 * value.item()
                if step % 25 == 0:
                    log.append(dict(step=step, slices=slices, minutes=progress * minutes, **smooth))
                    text = ", ".join(f"{name} {value:.3f}" for name, value in smooth.items())
                    print(f"{progress:5.1%} step {step}, {slices} slices: {text}", flush=True)
            save(model, tokenizer, folder, log)


def _fall(progress: float) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * min(1, progress))


def save(model: Any, tokenizer: Any, folder: Path, log: list[dict[str, float]]) -> None:
    """Write weights in float16, configuration, processor and the log of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().half().clone() for name, value in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=weights)
    write_processor(folder, tokenizer)
    (folder / "training.json").write_text(json.dumps(log, indent=0) + "\n")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_video_model.train", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--minutes", type=float, default=60, help="time of the training (default: 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    arguments = parser.parse_args()
    train(arguments.output, arguments.minutes, arguments.seed, arguments.resume)


if __name__ == "__main__":
    main()
