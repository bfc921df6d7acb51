"""`floc eval`: evaluate models, methods and ratios on the paper's benchmarks, and compare with the paper's numbers.

`plan` lists the runs, `preview` estimates their cost, `runner` executes them with lmms-eval, `report` shows the scores.
"""

from __future__ import annotations

from floc.evaluation import paper, preview, report
from floc.evaluation.command import build_command, check_lmms_eval, parse_gpus
from floc.evaluation.plan import EvalRun, PlanOptions, plan_grid, plan_paper
from floc.evaluation.results import ResultFolder
from floc.evaluation.runner import EvalStatus, execute_runs, list_pending

__all__ = [
    "EvalRun",
    "EvalStatus",
    "PlanOptions",
    "ResultFolder",
    "build_command",
    "check_lmms_eval",
    "execute_runs",
    "list_pending",
    "paper",
    "parse_gpus",
    "plan_grid",
    "plan_paper",
    "preview",
    "report",
]
