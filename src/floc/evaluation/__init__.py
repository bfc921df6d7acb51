"""`floc eval`: evaluate models, methods and ratios on the paper's benchmarks, and compare with the paper's numbers.

`plan` lists the runs, `preview` estimates their cost, `runner` executes them with lmms-eval, `report` shows the scores.
"""

from floc.evaluation import paper as paper
from floc.evaluation import preview as preview
from floc.evaluation import report as report
from floc.evaluation.command import build_command as build_command
from floc.evaluation.command import check_lmms_eval as check_lmms_eval
from floc.evaluation.command import parse_gpus as parse_gpus
from floc.evaluation.plan import EvalRun as EvalRun
from floc.evaluation.plan import PlanOptions as PlanOptions
from floc.evaluation.plan import plan_grid as plan_grid
from floc.evaluation.plan import plan_paper as plan_paper
from floc.evaluation.results import ResultFolder as ResultFolder
from floc.evaluation.runner import EvalStatus as EvalStatus
from floc.evaluation.runner import execute_runs as execute_runs
from floc.evaluation.runner import list_pending as list_pending
