"""`floc eval`: models, methods and ratios on the benchmarks of the paper, each number beside the paper's.

`plan` says what is to be run, `runner` runs it, a process for each GPU, and `report` shows what came out; `paper` has
the numbers of the paper's tables. Each cell is one run of lmms-eval.
"""

from __future__ import annotations

from floc.evaluation import paper, report
from floc.evaluation.command import lmms, require_lmms_eval
from floc.evaluation.folder import Folder
from floc.evaluation.plan import Cell, Wish, from_paper, grid
from floc.evaluation.runner import Status, pending, processes, run

__all__ = [
    "Cell",
    "Folder",
    "Status",
    "Wish",
    "from_paper",
    "grid",
    "lmms",
    "paper",
    "pending",
    "processes",
    "report",
    "require_lmms_eval",
    "run",
]
