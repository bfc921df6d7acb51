"""Run vLLM engines one after the other in this process: `python -m ... JOBS ANSWERS`, both JSON files."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.integrations.vllm import prompts

TOP = 8  # log-probabilities of each token


def main(jobs: Path, answers: Path) -> None:
    from vllm import LLM

    request = json.loads(jobs.read_text())
    engines, results = [], []
    for arguments in request["engines"]:
        names, together = arguments.pop("jobs", None), arguments.pop("together", request["together"])
        asked = [job for job in request["jobs"] if names is None or job[0] in names]
        engine = LLM(**arguments)
        engines.append(engine)  # earlier engines stay alive
        results.append(_ask_together(engine, asked) if together else _ask(engine, asked, request["watch"]))
    answers.write_text(json.dumps(results))


def _ask(llm: Any, jobs: list[Any], watch: bool) -> list[dict[str, Any]]:
    positions, towers = _record_calls(llm) if watch else ([], [])
    results = []
    for name, parts in jobs:
        positions.clear()
        towers.clear()
        try:
            if parts[0][0] == "move":  # a file takes the place of another
                shutil.move(*parts[0][1:])
            (output,) = _generate(llm, [parts[1:] if parts[0][0] == "move" else parts])
        except Exception as error:  # vLLM has errors of its own; a test that expects an answer fails for lack of one
            results.append({"name": name, "refused": str(error)})
        else:
            results.append({**_summarise(name, output), "positions": [*positions], "tower_calls": len(towers)})
    return results


def _ask_together(llm: Any, jobs: list[Any]) -> list[dict[str, Any]]:
    outputs = _generate(llm, [parts for _, parts in jobs])
    return [_summarise(name, output) for (name, _), output in zip(jobs, outputs, strict=True)]


def _generate(llm: Any, jobs: list[Any]) -> list[Any]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=4, logprobs=TOP, ignore_eos=True)
    if jobs[0][0][0] == "chat":
        ((_, address, question),) = jobs[0]
        video = {"type": "video_url", "video_url": {"url": address}}
        messages = [{"role": "user", "content": [video, {"type": "text", "text": question}]}]
        return llm.chat([messages], sampling, use_tqdm=False)
    return llm.generate([prompts.build(parts) for parts in jobs], sampling, use_tqdm=False)


def _summarise(name: str, output: Any) -> dict[str, Any]:
    (answer,) = output.outputs
    return {
        "name": name,
        "prompt": list(output.prompt_token_ids),
        "cached": output.num_cached_tokens,
        "answer": list(answer.token_ids),
        "logprobs": [{str(token): entry.logprob for token, entry in step.items()} for step in answer.logprobs],
    }


def _record_calls(llm: Any) -> tuple[list[Any], list[Any]]:
    """Collect the positions that the language model gets, one list per call, and the calls of the vision encoder."""
    positions: list[Any] = []
    towers: list[Any] = []

    def record_positions(module: Any, args: Any, kwargs: Any) -> None:
        positions.append(kwargs["positions"].tolist())

    def add_hooks(model: Any) -> None:
        model.register_forward_pre_hook(record_positions, with_kwargs=True)
        (tower,) = (child for name, child in model.named_children() if name in ("visual", "vision_tower"))
        tower.register_forward_pre_hook(lambda module, args: towers.append(1))

    llm.apply_model(add_hooks)
    return positions, towers


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
