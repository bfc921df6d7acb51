"""Engines in a process of their own, one after the other: `python -m ... JOBS ANSWERS`, both JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from . import prompts

TOP = 8  # log-probabilities of each token


def main(jobs: Path, answers: Path) -> None:
    from vllm import LLM

    asked = json.loads(jobs.read_text())
    engines, told = [], []
    for each in asked["engines"]:
        engines.append(LLM(**each))  # and stays while others are asked
        told.append(_ask(engines[-1], asked["jobs"], asked["watch"]))
    answers.write_text(json.dumps(told))


def _ask(llm: Any, jobs: list[Any], watch: bool) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    seen = _watch(llm) if watch else []
    told = []
    for name, parts in jobs:
        seen.clear()
        sampling = SamplingParams(temperature=0, max_tokens=4, logprobs=TOP, ignore_eos=True)
        (output,) = llm.generate(prompts.made(parts), sampling, use_tqdm=False)
        (answer,) = output.outputs
        told.append(
            {
                "name": name,
                "prompt": list(output.prompt_token_ids),
                "cached": output.num_cached_tokens,
                "answer": list(answer.token_ids),
                "logprobs": [{str(token): each.logprob for token, each in step.items()} for step in answer.logprobs],
                "positions": [*seen],
            }
        )
    return told


def _watch(llm: Any) -> list[Any]:
    """Positions that the language model gets, a list for each call."""
    seen: list[Any] = []

    def hook(module: Any, args: Any, kwargs: Any) -> None:
        seen.append(kwargs["positions"].tolist())

    def place(model: Any) -> None:
        model.register_forward_pre_hook(hook, with_kwargs=True)

    llm.apply_model(place)
    return seen


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
