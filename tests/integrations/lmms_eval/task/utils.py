"""Functions of the task: the path of a film, the text of a question, the score of an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LETTERS = "ABCD"


def doc_to_visual(doc: dict[str, Any]) -> list[str]:
    return [str(Path(__file__).parent / f"{doc['videoID']}.mp4")]


def doc_to_text(doc: dict[str, Any], lmms_eval_specific_kwargs: dict[str, str]) -> str:
    question = "\n".join([doc["question"], *doc["options"]])
    return f"{lmms_eval_specific_kwargs['pre_prompt']}{question}{lmms_eval_specific_kwargs['post_prompt']}"


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, dict[str, Any]]:
    answer = next((letter for letter in results[0] if letter in LETTERS), "")
    return {"keys_score": {"videoID": doc["videoID"], "answer": answer, "score": float(answer == doc["answer"])}}


def aggregate(results: list[dict[str, Any]]) -> float:
    return 100 * sum(each["score"] for each in results) / len(results)
