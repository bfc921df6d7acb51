"""The benchmarks of the paper as lmms-eval tasks: their datasets, and how to score an answer.

The paper's scores are the percentage of all questions. lmms-eval reports percent for some tasks, a fraction for others,
and for MLVU the mean of seven sub-tasks. So scores are computed here from the answers that lmms-eval logs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """A task of lmms-eval."""

    name: str
    title: str
    repository: str  # of the dataset
    questions: int
    mean_s: float  # mean length of a video, as published
    metric: str  # the key of a logged sample under which the answer is found
    answer: str = "pred_answer"  # the key of the model's answer there
    right: str = "answer"  # the key of the correct answer there
    part: str | None = None  # the key of the part of the task there
    access: str = ""  # what to do before downloading the dataset

    def is_correct(self, sample: Mapping[str, Any]) -> bool:
        """Return whether a logged sample has the correct answer."""
        record = sample[self.metric]
        return str(record[self.answer]).strip().lower() == str(record[self.right]).strip().lower()

    def get_part(self, sample: Mapping[str, Any]) -> str | None:
        """Return the part of the task that a logged sample belongs to."""
        return None if self.part is None else f"{self.name}/{sample[self.metric][self.part]}"


_TASKS = (
    Task("videomme", "Video-MME", "lmms-eval/Video-MME", 2700, 1018, "videomme_perception_score", part="duration"),
    Task("mlvu_dev", "MLVU", "sy1998/MLVU_dev", 2174, 930, "mlvu_percetion_score", part="task_type"),
    Task(
        *("longvideobench_val_v", "LongVideoBench", "longvideobench/LongVideoBench", 1337, 473, "lvb_acc"),
        *("parsed_pred", "answer", "duration_group", "accept its terms on its page, then run `hf auth login`"),
    ),
    Task("egoschema_subset", "EgoSchema", "lmms-eval/egoschema", 500, 180, "score", "pred", "ground_truth"),
)
TASKS = {task.name: task for task in _TASKS}


def title(name: str) -> str:
    """Return the display name of a task or of a part of it, such as videomme/short."""
    task, _, part = name.partition("/")
    text = TASKS[task].title if task in TASKS else task
    return f"{text}, {part}" if part else text
