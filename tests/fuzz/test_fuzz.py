"""A small part of the fuzz suite, and tests of its machinery. `make fuzz` runs all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import mutations, outcomes
from tests.fuzz.outcomes import judge_error

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in another process, which has a single thread and may fork."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT)]))}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("kind", "scale"), [("files", "0.02"), ("clips", "0.02"), ("api", "0.03"), ("cli", "0.02")])
def test_damaged_inputs_are_refused_or_give_valid_results(kind: str, scale: str) -> None:
    pytest.importorskip("av", reason="videos need pip install 'floc-video[video]'")
    pytest.importorskip("lance", reason="stores need pip install 'floc-video[store]'")
    done = run_python("-m", "tests.fuzz", kind, "--scale", scale, "--jobs", "1")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


CASES = """
import ctypes, json, time
from tests.fuzz import pool
from tests.fuzz.outcomes import Outcome

def run(case):
    if case == 3:
        ctypes.string_at(0)
    if case == 5:
        while True:
            pass
    if case == 6:
        time.sleep(60)
    if case == 7:
        bytearray(b"x") * (1200 << 20)
    return Outcome("valid")

pool.TIME_S, pool.BLOCKED_S = 2, 0.5
found = dict(pool.run_cases(run, range(10), 4, 2))
print(json.dumps([found[case].verdict for case in range(10)]))
"""


def test_the_pool_blames_the_case_that_crashes_hangs_or_takes_memory():
    done = run_python("-c", CASES)
    verdicts = ["valid"] * 10
    verdicts[3], verdicts[5], verdicts[6], verdicts[7] = "crash", "hang", "hang", "memory"
    assert done.stdout.strip() == str(verdicts).replace("'", '"'), done.stderr[-2000:]


def test_mutations_depend_on_the_seed_alone(tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"a": np.arange(6.0)}, tmp_path / "a", {"floc": '{"shape": [1, 2, 3]}'})
    data = (tmp_path / "a").read_bytes()
    assert mutations.SafeFile.parse(data).join() == mutations.SafeFile.parse(data).join()
    mutants = [mutations.mutate_safetensors(data, Random(number)) for number in range(200)]
    assert mutants == [mutations.mutate_safetensors(data, Random(number)) for number in range(200)]
    assert len({changed for changed, _ in mutants}) > 150


def judge(call) -> str:
    try:
        call()
    except Exception as error:
        return judge_error(error).verdict
    return outcomes.VALID


def test_only_errors_that_floc_raises_are_clear():
    import numpy as np

    import floc

    assert judge(lambda: floc.compress(np.zeros((2, 2, 2), np.float32), ratio=2)) == outcomes.REFUSED
    assert judge(lambda: floc.compress()) == outcomes.REFUSED  # type: ignore[call-arg]  # Python names the argument
    assert judge(lambda: np.zeros(-1)) == "unclear"
    assert judge(lambda: {}["key"]) == "traceback"


def test_an_invalid_result_is_found():
    import numpy as np

    import floc
    from tests.fuzz import oracles

    kept = floc.compress(np.random.default_rng(0).standard_normal((4, 2, 2, 8)).astype(np.float32), ratio="1/2")
    oracles.check_kept(kept)
    kept.indices[0] = kept.indices[1]
    with pytest.raises(outcomes.Invalid, match="ascending"):
        oracles.check_kept(kept)
