"""The benchmarks of the paper as lmms-eval has them: where the videos are, and how an answer is counted.

The paper's scores are shares of all questions. lmms-eval gives percent for some tasks and a fraction for others, and
for MLVU the mean of seven sub-tasks, so scores are counted here from the answers it writes; its own number stands
beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """A task of lmms-eval."""

    name: str
    title: str
    repository: str  # the dataset
    questions: int
    mean_s: float  # length of a video, as its authors give it
    metric: str  # of lmms-eval, under which an answer and what is right stand
    answer: str  # their names there
    right: str
    part: str | None = None  # the name of what scores are told apart by
    access: str = ""  # what to do before the files can be had

    def is_right(self, sample: Mapping[str, Any]) -> bool:
        """Whether an answer was the right one."""
        told = sample[self.metric]
        return str(told[self.answer]).strip().lower() == str(told[self.right]).strip().lower()

    def part_of(self, sample: Mapping[str, Any]) -> str | None:
        """Which part of the task a question belongs to."""
        return None if self.part is None else f"{self.name}/{sample[self.metric][self.part]}"


_TASKS = (
    Task(
        "videomme",
        "Video-MME",
        "lmms-eval/Video-MME",
        questions=2700,
        mean_s=1018,
        metric="videomme_perception_score",
        answer="pred_answer",
        right="answer",
        part="duration",
    ),
    Task(
        "mlvu_dev",
        "MLVU",
        "sy1998/MLVU_dev",
        questions=2174,
        mean_s=930,
        metric="mlvu_percetion_score",
        answer="pred_answer",
        right="answer",
        part="task_type",
    ),
    Task(
        "longvideobench_val_v",
        "LongVideoBench",
        "longvideobench/LongVideoBench",
        questions=1337,
        mean_s=473,
        metric="lvb_acc",
        answer="parsed_pred",
        right="answer",
        part="duration_group",
        access="agree to its terms on its page first, then `hf auth login`",
    ),
    Task(
        "egoschema_subset",
        "EgoSchema",
        "lmms-eval/egoschema",
        questions=500,
        mean_s=180,
        metric="score",
        answer="pred",
        right="ground_truth",
    ),
)
TASKS = {each.name: each for each in _TASKS}


def find(name: str) -> Task | None:
    """A task of the paper, or None for another one of lmms-eval."""
    return TASKS.get(name)


def title(name: str) -> str:
    """A task's name for people."""
    task, _, part = name.partition("/")
    told = TASKS[task].title if task in TASKS else task
    return f"{told}, {part}" if part else told
