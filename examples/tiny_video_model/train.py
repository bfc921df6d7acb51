"""Train the model from scratch: `python -m examples.tiny_video_model.train -o out/tiny --minutes 60`.

First the vision encoder learns to name what each visual token shows. Then the decoder learns to answer, from films that
the encoder has encoded once. Films get longer, from 8 to 64 frames. Losses for single tokens fade out (auxiliary.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional

from examples.tiny_video_model.auxiliary import AuxiliaryHeads
from examples.tiny_video_model.batches import BatchMaker
from examples.tiny_video_model.checkpoint import CHECKPOINT, write_sums
from examples.tiny_video_model.encoded_films import EncodedFilms, make_patches, render_films
from examples.tiny_video_model.films import PLACES
from examples.tiny_video_model.model import CELL, make_model, make_tokenizer, write_processor
from examples.tiny_video_model.packed import PackedDecoder, batch_windows, encode_frames
from examples.tiny_video_model.things import THINGS

# slices of a film, films in a batch, share of the decoder's time
STAGES = ((4, 8, 0.1), (8, 8, 0.2), (16, 6, 0.25), (32, 4, 0.45))
LAST_STAGES = ((16, 6, 0.15), (32, 4, 0.85))  # of a training that goes on
VISION_SHARE = 0.12  # of the time
VISION_SLICES, VISION_FILMS = 8, 6  # a batch for the vision encoder
MAX_SEED = 3  # seeds of films for training stay below those of tests
MATRIX_RATE, OTHER_RATE = 0.02, 3e-3
AUXILIARY_UNTIL = 0.8  # share of the decoder's time after which the losses for single tokens are gone


class Optimizers:
    """Muon for the matrices of a module's layers, AdamW for all else; rates rise, stay, and fall."""

    def __init__(self, module: torch.nn.Module, others: Iterable[torch.nn.Parameter] = ()):
        names = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
        matrices = [weight for name, weight in names if weight.ndim == 2 and "embed" not in name]
        rest = [weight for name, weight in names if weight.ndim != 2 or "embed" in name] + list(others)
        self._rates = (MATRIX_RATE, OTHER_RATE)
        self._optimizers = (
            torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.05),
            torch.optim.AdamW(rest, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self._weights = matrices + rest
        self._steps = 0

    def step(self, loss: torch.Tensor, progress: float) -> None:
        """Take a step; `progress` is the share of the time that has passed."""
        self._steps += 1
        factor = min(1, self._steps / 50) * min(1, (1 - progress) / 0.4 + 0.01)
        for optimizer, rate in zip(self._optimizers, self._rates, strict=True):
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        for optimizer in self._optimizers:
            optimizer.step()


class Log:
    """Print running means every few seconds and keep them."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._started = self._printed = time.monotonic()
        self._means: dict[str, float] = {}

    def add(self, part: str, step: int, **values: float) -> None:
        """Add a step's values."""
        for name, value in values.items():
            self._means[name] = 0.95 * self._means.get(name, value) + 0.05 * value
        if time.monotonic() - self._printed > 15:
            self._printed = time.monotonic()
            minutes = (self._printed - self._started) / 60
            means = {name: round(self._means[name], 4) for name in values}
            self.lines.append({"part": part, "minutes": round(minutes, 2), "step": step, **means})
            text = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
            print(f"{minutes:5.1f} min, {part}, step {step}" + (f": {text}" if text else ""), flush=True)


def train_vision(model: Any, tokenizer: Any, height: int, width: int, minutes: float, seed: int, log: Log) -> None:
    """Train the vision encoder: each visual token shall resemble the embedding of the word for what it shows."""
    visual = model.model.visual
    words = torch.tensor([tokenizer.encode(f" {word}")[0] for word in (*PLACES, *THINGS)], device=model.device)
    directions = functional.normalize(model.get_input_embeddings()(words).detach().float(), dim=-1)
    grid = torch.tensor([[VISION_SLICES, 2 * height // CELL, 2 * width // CELL]] * VISION_FILMS, device=model.device)
    optimizers = Optimizers(visual)
    films = render_films(seed, VISION_SLICES, height, width)
    started, step = time.monotonic(), 0
    with batch_windows(model):
        while (progress := (time.monotonic() - started) / (60 * minutes)) < 1:
            drawn = [next(films) for _ in range(VISION_FILMS)]
            frames = torch.from_numpy(np.concatenate([frames for _, frames, _ in drawn])).to(model.device)
            labels = torch.from_numpy(np.concatenate([labels.ravel() for *_, labels in drawn])).to(model.device)
            with _autocast(model):
                tokens = visual(make_patches(frames), grid_thw=grid).pooler_output.float()
            logits = 3 * tokens @ directions.T
            is_thing = labels >= len(PLACES)
            weights = torch.where(is_thing, 3.0, 1.0)
            loss = (functional.cross_entropy(logits, labels, reduction="none") * weights).sum() / weights.sum()
            optimizers.step(loss + 1e-3 * tokens.square().sum(-1).mean(), progress)
            right = (logits.argmax(-1) == labels).float()
            step += 1
            log.add("vision", step, loss=loss.item(), things=right[is_thing].mean().item(), all=right.mean().item())
    films.close()


def encode_films(model: Any, count: int, height: int, width: int, seed: int, log: Log) -> EncodedFilms:
    """Encode films with the trained encoder."""

    def encode(frames: np.ndarray) -> torch.Tensor:
        with _autocast(model):
            return encode_frames(model, frames)

    return EncodedFilms(encode, count, seed, height, width, lambda done: log.add("encoding", done))


def train_decoder(
    model: Any,
    tokenizer: Any,
    films: EncodedFilms,
    grid: tuple[int, int],
    minutes: float,
    seed: int,
    log: Log,
    *,
    stages: Sequence[tuple[int, int, float]] = STAGES,
    drop: bool = False,
    save: Callable[[], None] = lambda: None,
) -> None:
    """Train the decoder to answer questions; `drop` leaves out visual tokens at random."""
    decoder = model.model.language_model
    packed = PackedDecoder(model, tokenizer, *grid)
    things = torch.tensor([tokenizer.encode(f" {thing}")[0] for thing in THINGS])
    heads = AuxiliaryHeads(model, things)
    optimizers = Optimizers(decoder, heads.parameters())
    started, step = time.monotonic(), 0
    for stage, (slices, size, _) in enumerate(stages):
        maker = BatchMaker(tokenizer, films, slices, size, seed + stage, drop=drop)
        end = sum(share for *_, share in stages[: stage + 1])
        while (progress := (time.monotonic() - started) / (60 * minutes)) < end:
            batch = maker.make().to(model.device)
            with _autocast(model):
                states = packed.compute(slices, batch.visual, batch.kept, batch.text)
                asked = batch.text.targets >= 0
                logits, targets = model.lm_head(states[asked]).float(), batch.text.targets[asked]
            answers = functional.cross_entropy(logits, targets)
            right = (logits.argmax(-1) == targets).float().mean()
            weight = max(0.0, 0.3 * (1 - progress / AUXILIARY_UNTIL))
            auxiliary = heads.compute(batch, packed.start) if weight else torch.zeros(())
            optimizers.step(answers + weight * auxiliary, progress)
            step += 1
            values = dict(answers=answers.item(), auxiliary=auxiliary.item(), right=right.item())
            log.add(f"{slices} slices", step, **values)
        save()
    heads.close()


def _autocast(model: Any) -> Any:
    return torch.autocast(model.device.type, torch.bfloat16)


def save_checkpoint(model: Any, tokenizer: Any, folder: Path, height: int, width: int, log: Log) -> None:
    """Write weights in float16, configuration, processor and the log of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().half().clone() for name, value in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=weights)
    write_processor(folder, tokenizer, height, width)
    (folder / "training.json").write_text("[\n" + ",\n".join(map(json.dumps, log.lines)) + "\n]\n")


def train(
    folder: Path, minutes: float, seed: int, *, films: int, rows: int, columns: int, drop: bool, start: Path | None
) -> None:
    """Train and write a checkpoint."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    height, width = rows * CELL, columns * CELL
    tokenizer, log = make_tokenizer(), Log()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    settings = dict(minutes=minutes, seed=seed, films=films, rows=rows, columns=columns, drop=drop)
    log.lines.append({"device": device.type, **versions, **settings})
    if start is not None and (start / "training.json").exists():
        log.lines = [*json.loads((start / "training.json").read_text()), *log.lines]
    model: Any
    if start is None:
        model = make_model(tokenizer, seed)
    else:
        model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
    model.to(device).train()
    if start is None:
        train_vision(model, tokenizer, height, width, VISION_SHARE * minutes, (2 * seed + 1) * 10**8, log)
        save_checkpoint(model, tokenizer, folder, height, width, log)
    encoded = encode_films(model, films, height, width, (2 * seed + 2) * 10**8, log)

    def save() -> None:
        save_checkpoint(model, tokenizer, folder, height, width, log)

    stages, share = (STAGES, 1 - VISION_SHARE) if start is None else (LAST_STAGES, 1.0)
    train_decoder(
        model, tokenizer, encoded, (rows, columns), share * minutes, seed, log, stages=stages, drop=drop, save=save
    )
    write_sums(folder)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_video_model.train", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--minutes", type=float, default=60, help="time of the training (default: 60)")
    parser.add_argument("--films", type=int, default=2400, help="films that the decoder learns from (default: 2400)")
    parser.add_argument("--rows", type=int, default=4, help="visual tokens of a slice: rows (default: 4)")
    parser.add_argument("--columns", type=int, default=6, help="and columns (default: 6)")
    parser.add_argument("--drop", action="store_true", help="leave out visual tokens at random")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, films and questions (default: 0)")
    parser.add_argument("--start", type=Path, help="a checkpoint whose training goes on; its vision encoder stays")
    options = vars(parser.parse_args())
    if not 0 <= options["seed"] <= MAX_SEED:
        parser.error(f"--seed: 0 to {MAX_SEED}, as other films are for tests; got {options['seed']}")
    if not torch.cuda.is_available():
        minutes = f"{options['minutes']:.0f} minutes on the CPU, and some to encode films"
        print(f"no GPU: the training takes {minutes}; a trained checkpoint is in {CHECKPOINT}", file=sys.stderr)
    train(options.pop("output"), options.pop("minutes"), options.pop("seed"), **options)


if __name__ == "__main__":
    main()
