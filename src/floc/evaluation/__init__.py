"""`floc eval`: evaluate models, methods and ratios on the paper's benchmarks, and compare with the paper's numbers.

`plan` lists the runs, `preview` estimates their cost, `runner` executes them with lmms-eval, `report` shows the scores.
"""
