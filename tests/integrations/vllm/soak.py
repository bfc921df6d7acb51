"""Many requests on one engine: videos and pictures at mixed ratios, in batches of any size.

`python -m tests.integrations.vllm.soak COUNT` prints one line of JSON: the number of requests (1,000 by default), of
wrong answers, and the resident memory of the process in bytes after each quarter of the requests. With `plain` after
COUNT, vLLM runs without floc, to tell its own growth from the plugin's.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from floc._system import release_memory, resident_bytes
from tests.integrations.vllm import prompts, tiny

GIVEN: list[Any] = [None, False, {"ratio": "1/4"}, {"ratio": "1/16"}, {"tokens": 40}, {"images": "1/4"}]
MEDIA: list[list[Any]] = [
    [["video", 16, 48, 48, 2.0]],
    [["video", 8, 32, 64, 4.0], "and", ["image", 48, 32]],
    [["image", 64, 64]],
    [["image", 32, 32], ["video", 24, 32, 32, 1.0], "or", ["video", 8, 48, 48, 2.0]],
]
CHUNK = 256  # tokens at most that the engine reads at once, so that prompts are read in chunks
WITHIN = 1e-3  # log-probabilities of an answer, alone and in a batch


def main(model: str, count: int, has_floc: bool) -> None:
    from vllm import LLM

    llm = LLM(
        model=model,
        dtype="float32",
        max_model_len=1024,
        block_size=32,
        enforce_eager=True,
        max_num_batched_tokens=CHUNK,
        max_num_seqs=8,
        num_gpu_blocks_override=160,  # so that caches are full early and requests are preempted
        limit_mm_per_prompt={"image": 2, "video": 2},
        additional_config={"floc": {"ratio": "1/8"}} if has_floc else {},
    )
    given = GIVEN if has_floc else [None] * len(GIVEN)
    jobs = [prompts.build([*media, "?", ["floc", each]], seed) for seed, media in enumerate(MEDIA) for each in given]
    expected = [_ask(llm, [job])[0] for job in jobs]
    rng = np.random.default_rng(0)
    # oneDNN compiles a product for each number of tokens that is read at once, and keeps it: fill that cache of vLLM's
    for length in range(1, CHUNK + 1):
        _ask(llm, [{"prompt_token_ids": rng.integers(1, 200, length).tolist()}])
    done, wrong, memory = 0, 0, []
    while done < count:
        picks = rng.integers(0, len(jobs), min(int(rng.integers(1, 17)), count - done))
        answers = _ask(llm, [jobs[pick] for pick in picks])
        wrong += sum(not _is_close(answer, expected[pick]) for answer, pick in zip(answers, picks, strict=True))
        before, done = done, done + len(picks)
        if 4 * before // count < 4 * done // count:
            gc.collect()
            release_memory()
            memory.append(resident_bytes())
    print(json.dumps({"requests": done, "wrong": wrong, "memory": memory}), flush=True)


def _ask(llm: Any, jobs: list[Any]) -> list[dict[int, float]]:
    """Return the log-probabilities of the first token of each answer."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=2, logprobs=4, ignore_eos=True)
    outputs = llm.generate(jobs, sampling, use_tqdm=False)
    return [{token: each.logprob for token, each in output.outputs[0].logprobs[0].items()} for output in outputs]


def _is_close(answer: dict[int, float], expected: dict[int, float]) -> bool:
    shared = answer.keys() & expected.keys()
    return len(shared) >= len(expected) - 1 and all(abs(answer[token] - expected[token]) < WITHIN for token in shared)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        count = int(sys.argv[1]) if sys.argv[1:] else 1000
        main(str(tiny.write("qwen2_5_vl", Path(folder) / "model")), count, has_floc="plain" not in sys.argv)
