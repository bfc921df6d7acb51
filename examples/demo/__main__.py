"""`python -m examples.demo`: ask a tiny trained model about a film, with all visual tokens and with 1/8 to 1/32."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from examples.demo.demo import FILMS, run_demo
from examples.tiny_video_model.checkpoint import CHECKPOINT, load_checkpoint, open_checkpoint
from floc import report
from floc.cli.options import check_folder
from floc.cli.output import screen, show_progress


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, load the model and run the demo."""
    parser = argparse.ArgumentParser("python -m examples.demo", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/demo"), help="folder of the film and the report")
    parser.add_argument("--seed", type=int, default=0, help="another seed renders another film (default: 0)")
    parser.add_argument("--films", type=int, default=FILMS, help=f"films in the table (default: {FILMS})")
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help="another trained model: a folder or .tar file"
    )
    options = parser.parse_args(arguments)
    check_folder(options.output)
    report.require_packages()
    torch.set_num_threads(1)  # on so small a model, threads only wait for one another
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(open_checkpoint(options.checkpoint))
        except (OSError, ValueError) as error:
            parser.error(f"--checkpoint: {error}")
        model, processor = load_checkpoint(folder)
        settings: dict[str, Any] = {"seed": options.seed, "films": options.films, "progress": show_progress}
        run_demo(screen, options.output, folder, model, processor, **settings)


if __name__ == "__main__":
    main()
