"""Install substitutes for packages that do not load here, before anything imports transformers."""

from __future__ import annotations

import runpy

from tests.integrations.lmms_eval.process import STAND_INS, needs_stand_in

collect_ignore_glob = ["stand_ins/*", "task/*"]  # for subprocesses

if needs_stand_in("torchvision"):
    runpy.run_path(str(STAND_INS / "torchvision" / "sitecustomize.py"))
