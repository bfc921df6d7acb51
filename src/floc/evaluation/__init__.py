"""`floc eval`: evaluate models, methods and ratios on the paper's benchmarks, and compare with the paper's numbers.

`plan` lists the cells, `preview` estimates their cost, `runner` runs them with lmms-eval, `report` shows the scores.
"""

from __future__ import annotations

from floc.evaluation import paper, preview, report
from floc.evaluation.command import build_command, check_lmms_eval, parse_gpus
from floc.evaluation.plan import Cell, PlanOptions, plan_grid, plan_paper
from floc.evaluation.results import ResultFolder
from floc.evaluation.runner import EvalStatus, list_pending, run_cells

__all__ = [
    "Cell",
    "EvalStatus",
    "PlanOptions",
    "ResultFolder",
    "build_command",
    "check_lmms_eval",
    "list_pending",
    "paper",
    "parse_gpus",
    "plan_grid",
    "plan_paper",
    "preview",
    "report",
    "run_cells",
]
