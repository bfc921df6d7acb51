"""Benchmarks: `python -m benchmarks TABLE` measures one table; README and docs are filled from its results.

All contenders of a case run in turn in one process on the same inputs. Compare ratios, not milliseconds: times depend
on the machine and its load, ratios hardly do.
"""
