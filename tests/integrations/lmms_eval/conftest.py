"""Nothing to collect in what subprocesses use."""

from __future__ import annotations

collect_ignore_glob = ["stand_ins/*", "task/*", "on_cpu.py"]
