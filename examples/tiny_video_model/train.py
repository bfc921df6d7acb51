"""Train the model from scratch: `python -m examples.tiny_video_model.train -o out/tiny`, ten minutes on one GPU.

First the vision encoder learns to name what each visual token shows. Then the whole model learns to answer questions
about films that get longer, from 8 to 128 frames. Losses for single tokens fade out (auxiliary.py).

With `--start CHECKPOINT` the decoder of a trained model is trained further, for example on films with tokens left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional

from examples.tiny_video_model.auxiliary import AuxiliaryHeads
from examples.tiny_video_model.batches import SEEDS_PER_PROCESS, Batch, BatchMaker, load_batches
from examples.tiny_video_model.checkpoint import (
    CHECKPOINT,
    LOG,
    WEIGHTS,
    describe_checkpoint,
    load_checkpoint,
    open_checkpoint,
    pack_checkpoint,
    write_sums,
)
from examples.tiny_video_model.exam import Examiner, compute_accuracy, make_exams
from examples.tiny_video_model.films import PLACES
from examples.tiny_video_model.model import CELL, make_model, make_tokenizer, write_processor
from examples.tiny_video_model.optimizers import Optimizers
from examples.tiny_video_model.packed import PackedDecoder, compute_tokens
from examples.tiny_video_model.progress import Log, Progress
from examples.tiny_video_model.questions import KINDS
from examples.tiny_video_model.rendering import Renderer
from examples.tiny_video_model.things import THINGS

# slices of a film, share of the time
STAGES = ((4, 0.05), (8, 0.12), (16, 0.23), (32, 0.4), (64, 0.2))
# of a model that is trained already, for slices of as many tokens, or of another number
FURTHER_STAGES, OTHER_STAGES = ((32, 1.0),), ((8, 0.4), (16, 0.3), (32, 0.3))
FURTHER_RATE = 0.3  # its learning rates, as a share of those for random weights
# tokens in a batch, and films whose activations are in memory at a time; a CPU is fastest if these fit its cache
SIZES = {"cuda": (40_000, 10**6), "cpu": (12_000, 1)}
TEXT_TOKENS = 350  # of the questions about a film, about
USES = 4  # batches that use an encoded film
VISION_SHARE = 0.08  # of the time
VISION_SLICES = 8
LEAST_MINUTES = 1e-3  # if loading the libraries took all the time
MAX_SEED = 3  # seeds of films for training stay below those of tests
MAX_PROCESSES = 32  # that make batches
AUXILIARY_WEIGHT = 0.3
AUXILIARY_UNTIL = 0.6  # share of the decoder's time after which the losses for single tokens are gone
EXAM_FILMS = 40  # after each stage
CPU_HOURS = 20  # of one core, for as many tokens as an H200 learns from in nine minutes


class Trainer:
    """The model and what its training needs.

    Args:
        rows, columns: Visual tokens of a slice.
        seed: Of the weights, the films and the questions.
        drop: Leave out visual tokens at random.
        processes: That make batches; 0: this one makes them.
        exam_films: Films of the exam after each stage.
        batch_tokens: Visual and text tokens in a batch; None: those of SIZES.
        start: A checkpoint to train further; None: start from random weights.
        has_other_grid: Whether it was trained on another number of tokens.
        rate: Of learning, as a share of that for random weights.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        seed: int,
        *,
        drop: bool = False,
        processes: int = 0,
        exam_films: int = EXAM_FILMS,
        batch_tokens: int | None = None,
        start: Path | None = None,
        has_other_grid: bool = False,
        rate: float = 1.0,
    ):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = make_tokenizer()
        model: Any = make_model(self.tokenizer, seed) if start is None else load_checkpoint(start)[0]
        self.model = model.to(self.device).train()
        self.log = Log()
        self._grid, self._drop, self._processes = (rows, columns), drop, processes
        self._exam_films, self._rate = exam_films, rate
        self._stages = STAGES if start is None else OTHER_STAGES if has_other_grid else FURTHER_STAGES
        self._auxiliary_weight = AUXILIARY_WEIGHT if start is None else 0.0
        self._first_film = get_first_film(seed, is_further=start is not None)
        tokens, self._together = SIZES[self.device.type]
        self.batch_tokens = batch_tokens or tokens
        self._renderer = Renderer(rows * CELL, columns * CELL, self.device)
        words = torch.tensor([self.tokenizer.encode(f" {word}")[0] for word in (*PLACES, *THINGS)])
        self._words = words.to(self.device)
        self._streams = 0

    def train_vision(self, length: Progress) -> None:
        """Train the vision encoder: each visual token shall resemble the embedding of the word for what it shows."""
        optimizers = Optimizers(self.model.model.visual, rate=self._rate)
        step = 0
        batches, _ = self._open_batches(VISION_SLICES, uses=1)
        while (progress := length.compute(step)) < 1:
            batch = next(batches).to(self.device)
            # encoded in the order of the new places, which are all places of the bank
            labels = batch.visual_labels[batch.places.argsort(), :, 2].flatten()
            with self._autocast():
                tokens = compute_tokens(self.model, self._renderer.draw(batch.drawings)).flatten(0, 2).float()
            loss, values = self._name_tokens(tokens, labels)
            optimizers.clear()
            loss.backward()
            optimizers.step(progress)
            step += 1
            self.log.add("vision", step, loss=loss, **values)

    def _name_tokens(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of visual tokens [V, D] that do not resemble the word for what they show."""
        directions = functional.normalize(self.model.get_input_embeddings()(self._words).detach().float(), dim=-1)
        logits = 3 * tokens @ directions.T
        is_thing = labels >= len(PLACES)
        weights = torch.where(is_thing, 3.0, 1.0)
        loss = (functional.cross_entropy(logits, labels, reduction="none") * weights).sum() / weights.sum()
        right = (logits.argmax(-1) == labels).float()
        shares = {"things": (right * is_thing).sum() / is_thing.sum().clamp(min=1), "all": right.mean()}
        return loss + 1e-3 * tokens.square().sum(-1).mean(), shares

    def train_decoder(self, length: Progress, save: Callable[[], None] = lambda: None) -> None:
        """Train the decoder to answer questions about films that get longer; the vision encoder stays as it is.

        Args:
            length: Of the training.
            save: Called after each stage, before and after its exam.
        """
        packed = PackedDecoder(self.model, self.tokenizer, *self._grid)
        heads = AuxiliaryHeads(self.model, self._words[len(PLACES) :])
        if self.device.type == "cuda":
            for layer in self.model.model.language_model.layers:
                layer.forward = torch.compile(layer.forward, dynamic=True)  # 85% of a step are elementwise operations
        optimizers = Optimizers(self.model.model.language_model, heads.parameters(), rate=self._rate)
        step, end = 0, 0.0
        last = self._stages[-1][0]
        for slices, share in self._stages:
            end += share
            # the longest films alternate with shorter ones, so that these are not forgotten
            lengths = (STAGES[-2][0], slices) if slices == STAGES[-1][0] else (slices,)
            streams = [self._open_batches(length, uses=USES) for length in lengths]
            while (progress := length.compute(step)) < end:
                batches, bank = streams[step % len(streams)]
                batch = next(batches).to(self.device)
                self._encode(batch, bank)
                weight = max(0.0, self._auxiliary_weight * (1 - progress / AUXILIARY_UNTIL))
                optimizers.clear()
                values = self._add_gradients(packed, heads, batch, bank, weight)
                optimizers.step(progress)
                step += 1
                self.log.add(f"{slices} slices", step, **values)
            save()
            if progress < 1 or slices == last:  # no exam of an earlier stage when the time is over
                self._examine(slices)
                save()  # with the accuracy in the log
        heads.close()
        for layer in self.model.model.language_model.layers:
            layer.__dict__.pop("forward", None)

    @torch.compiler.set_stance("force_eager")  # lengths differ from film to film
    def _examine(self, slices: int) -> None:
        """Log the accuracy on films of a length that are not for training."""
        height, width = (CELL * size for size in self._grid)
        examiner = Examiner(self.model, self.tokenizer, height, width)
        exams = make_exams(self.model, self._exam_films, slices=slices, height=height, width=width)
        kinds, _, accuracy = compute_accuracy(np.sum([examiner.grade(exam, None) for exam in exams], 0))
        self.log.note(
            f"{slices} slices, exam", accuracy=float(accuracy), **dict(zip(KINDS, kinds.tolist(), strict=True))
        )

    @torch.no_grad()
    def _encode(self, batch: Batch, bank: torch.Tensor) -> None:
        with self._autocast():
            tokens = compute_tokens(self.model, self._renderer.draw(batch.drawings))
        bank[batch.new_places] = tokens.reshape(len(batch.new_places), *bank.shape[1:]).to(bank.dtype)

    def _add_gradients(
        self, packed: PackedDecoder, heads: AuxiliaryHeads, batch: Batch, bank: torch.Tensor, weight: float
    ) -> dict[str, torch.Tensor]:
        """Compute the gradients of a batch, a few films at a time."""
        sums: dict[str, torch.Tensor] = {}
        asked_in_all = (batch.text.targets >= 0).sum()
        slices = bank.shape[1] // math.prod(self._grid)
        for start in range(0, len(batch.places), self._together):
            part = batch.get_part(slice(start, start + self._together))
            text, share = part.text, len(part.places) / len(batch.places)
            with self._autocast():
                tokens = bank[part.places].float()
                visual = tokens.gather(1, part.kept[..., None].expand(-1, -1, tokens.shape[-1]))
                states = packed.compute(slices, visual, part.kept, text)
                asked = text.targets >= 0
                logits, targets = self.model.lm_head(states[asked]).float(), text.targets[asked]
            loss = functional.cross_entropy(logits, targets, reduction="sum") / asked_in_all
            right = (logits.argmax(-1) == targets).sum() / asked_in_all
            values = {"answers": loss.detach(), "right": right}
            if weight:
                auxiliary = share * heads.compute(part, packed.start)
                loss = loss + weight * auxiliary
                values["auxiliary"] = auxiliary.detach()
            loss.backward()
            sums = {name: sums.get(name, 0) + value for name, value in values.items()}
        return sums

    def _open_batches(self, slices: int, uses: int) -> tuple[Iterator[Batch], torch.Tensor]:
        """Return batches of films of a length, and the bank for their encoded films, which batches for vision lack."""
        rows, columns = self._grid
        count = slices * rows * columns
        is_vision = uses == 1
        length = count + (0 if is_vision else TEXT_TOKENS)
        first = self._first_film + self._streams * MAX_PROCESSES * SEEDS_PER_PROCESS
        drop = self._drop and not is_vision
        self._streams += 1
        size = max(4, self.batch_tokens // length)
        maker = BatchMaker(self.tokenizer, slices, size, first, rows, columns, uses, drop=drop)
        hidden = self.model.config.text_config.hidden_size
        films = maker.bank * max(1, self._processes) if not is_vision else 0
        bank = torch.zeros(films, count, hidden, dtype=torch.bfloat16, device=self.device)
        return load_batches(maker, self._processes), bank

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16)


def get_first_film(seed: int, *, is_further: bool) -> int:
    """Return the seed of a training's first film; further training sees other films."""
    return (2 * seed + (2 if is_further else 1)) * 10**8


def save_checkpoint(model: Any, tokenizer: Any, output: Path, height: int, width: int, log: Log) -> None:
    """Write weights in float16, configuration, processor and log of the training: a folder, or one .tar file."""
    if output.suffix == ".tar":
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(model, tokenizer, Path(folder), height, width, log)
            pack_checkpoint(Path(folder), output)
        return
    output.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().half().clone() for name, value in model.state_dict().items()}
    model.save_pretrained(output, state_dict=weights)
    write_processor(output, tokenizer, height, width)
    (output / LOG).write_text("[\n" + ",\n".join(map(json.dumps, log.lines)) + "\n]\n")
    write_sums(output)


def describe_start(source: Path) -> dict[str, Any]:
    """Return the hash of a checkpoint's weights and the settings of its training.

    Raise ValueError if it is damaged, or if its words are not those of the questions.
    """
    about = describe_checkpoint(source)
    weights = next(line.partition("  ")[0] for line in about["checkpoint"] if line.endswith(f"  {WEIGHTS}"))
    with open_checkpoint(source) as folder:
        vocabulary = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    if vocabulary != make_tokenizer().get_vocab():
        raise ValueError(f"{source} has another vocabulary than this training; pass a checkpoint that it wrote")
    return {"weights": weights, **about["training"]}


def train(
    output: Path,
    minutes: float,
    seed: int,
    *,
    rows: int,
    columns: int,
    drop: bool,
    start: Path | None = None,
    rate: float = 1.0,
    steps: int | None = None,
    **options: Any,
) -> None:
    """Train and write a checkpoint, for some minutes or steps; other options are those of `Trainer`."""
    minutes = max(minutes, LEAST_MINUTES)
    end = time.monotonic() + 60 * minutes
    origin = None if start is None else describe_start(start)
    is_other = origin is not None and (origin["rows"], origin["columns"]) != (rows, columns)
    trainer = Trainer(rows, columns, seed, drop=drop, start=start, has_other_grid=is_other, rate=rate, **options)
    name = torch.cuda.get_device_name() if trainer.device.type == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    duration: dict[str, Any] = {"minutes": round(minutes, 2)} if steps is None else {"steps": steps}
    settings = dict(
        **duration, batch_tokens=trainer.batch_tokens, seed=seed, rows=rows, columns=columns, drop=drop, rate=rate
    )
    further = {} if origin is None else {"start": origin}
    trainer.log.lines.append({"device": name, **versions, **settings, **further})

    def save() -> None:
        save_checkpoint(trainer.model, trainer.tokenizer, output, rows * CELL, columns * CELL, trainer.log)

    if origin is None or is_other:  # things have another size then
        share = None if steps is None else VISION_SHARE * steps
        trainer.train_vision(Progress(VISION_SHARE * minutes, share))
        save()
    trainer.train_decoder(Progress(max((end - time.monotonic()) / 60, LEAST_MINUTES), steps), save)


def warn_without_gpu() -> None:
    """Say what training costs without a GPU, and that there is a trained model already."""
    if not torch.cuda.is_available():
        print(
            f"no GPU: a CPU core takes about {CPU_HOURS} hours for what a GPU learns in nine minutes; "
            f"a trained checkpoint is in {CHECKPOINT}",
            file=sys.stderr,
        )


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_video_model.train", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder or .tar file for the checkpoint")
    parser.add_argument("--minutes", type=float, default=9, help="time of the training (default: 9)")
    parser.add_argument(
        "--until", type=float, metavar="SECONDS", help="in place of --minutes: when it ends, in seconds since 1970"
    )
    parser.add_argument("--steps", type=int, help="in place of --minutes: how many steps the decoder is trained for")
    parser.add_argument("--rows", type=int, default=4, help="visual tokens of a slice: rows (default: 4)")
    parser.add_argument("--columns", type=int, default=6, help="and columns (default: 6)")
    parser.add_argument("--drop", action="store_true", help="leave out visual tokens at random")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, films and questions (default: 0)")
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--processes", type=int, default=min(12, cores - 1), help="processes that make batches (default: %(default)s)"
    )
    parser.add_argument(
        "--exam-films", type=int, default=EXAM_FILMS, help="films of the exam after each stage (default: %(default)s)"
    )
    parser.add_argument("--batch-tokens", type=int, help="tokens in a batch (default: 40,000; 12,000 without a GPU)")
    parser.add_argument(
        "--start",
        type=Path,
        metavar="CHECKPOINT",
        help="train this model further, a folder or .tar file, on other films; its vision encoder stays as it is if "
        "the number of tokens in a slice does",
    )
    parser.add_argument(
        "--rate",
        type=float,
        help=f"learning rates, as a share of those for random weights (default: 1; {FURTHER_RATE} with --start)",
    )
    options = vars(parser.parse_args())
    if not 0 <= options["processes"] <= MAX_PROCESSES:
        parser.error(f"--processes: 0 to {MAX_PROCESSES}, got {options['processes']}")
    if not 0 <= options["seed"] <= MAX_SEED:
        parser.error(f"--seed: 0 to {MAX_SEED}, as other films are for tests; got {options['seed']}")
    if options["steps"] is not None and options["steps"] < 1:
        parser.error(f"--steps: at least 1, got {options['steps']}")
    if options["start"] is not None:
        try:
            describe_start(options["start"])
        except (OSError, ValueError) as error:
            parser.error(f"--start: {error}")
    if options["rate"] is None:
        options["rate"] = 1.0 if options["start"] is None else FURTHER_RATE
    elif not 0 < options["rate"] < math.inf:
        parser.error(f"--rate: a number above 0, got {options['rate']}")
    until = options.pop("until")
    if until is not None:
        options["minutes"] = (until - time.time()) / 60
    else:
        warn_without_gpu()
    transformers.utils.logging.disable_progress_bar()
    train(options.pop("output"), options.pop("minutes"), options.pop("seed"), **options)


if __name__ == "__main__":
    main()
