"""Engines in a process of their own, one after the other: `python -m ... JOBS ANSWERS`, both JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.integrations.vllm import prompts

TOP = 8  # log-probabilities of each token


def main(jobs: Path, answers: Path) -> None:
    from vllm import LLM

    asked = json.loads(jobs.read_text())
    engines, told = [], []
    for each in asked["engines"]:
        engines.append(LLM(**each))  # and stays while others are asked
        told.append(_ask_together(engines[-1], asked["jobs"]) if asked["together"] else _ask(engines[-1], **asked))
    answers.write_text(json.dumps(told))


def _ask(llm: Any, jobs: list[Any], watch: bool, **_: Any) -> list[dict[str, Any]]:
    seen = _watch(llm) if watch else []
    told = []
    for name, parts in jobs:
        seen.clear()
        try:
            (output,) = _answered(llm, [parts])
        except ValueError as error:
            told.append({"name": name, "refused": str(error)})
        else:
            told.append({**_told(name, output), "positions": [*seen]})
    return told


def _ask_together(llm: Any, jobs: list[Any]) -> list[dict[str, Any]]:
    outputs = _answered(llm, [parts for _, parts in jobs])
    return [_told(name, output) for (name, _), output in zip(jobs, outputs, strict=True)]


def _answered(llm: Any, jobs: list[Any]) -> list[Any]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=4, logprobs=TOP, ignore_eos=True)
    return llm.generate([prompts.made(parts) for parts in jobs], sampling, use_tqdm=False)


def _told(name: str, output: Any) -> dict[str, Any]:
    (answer,) = output.outputs
    return {
        "name": name,
        "prompt": list(output.prompt_token_ids),
        "cached": output.num_cached_tokens,
        "answer": list(answer.token_ids),
        "logprobs": [{str(token): each.logprob for token, each in step.items()} for step in answer.logprobs],
    }


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
