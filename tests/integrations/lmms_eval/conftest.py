"""Before anything imports transformers: packages that lmms-eval needs and that do not load here are stood in for."""

from __future__ import annotations

import runpy

from tests.integrations.lmms_eval.process import STAND_INS, is_stood_in_for

collect_ignore_glob = ["stand_ins/*", "task/*"]  # for other processes

if is_stood_in_for("torchvision"):
    runpy.run_path(str(STAND_INS / "torchvision" / "sitecustomize.py"))
