import pytest
import torch

from benchmarks.memory import growth_bytes

MIB = 1 << 20


@pytest.mark.parametrize("mib", [0, 40, 80])
def test_growth_is_what_a_call_takes_at_its_peak(mib):
    def call():
        torch.ones(mib * MIB, dtype=torch.uint8)  # let go of before the call ends

    call()
    grown = growth_bytes(call, torch.device("cpu"))
    if grown is None:
        pytest.skip("this system does not tell")
    assert grown == pytest.approx(mib * MIB, abs=8 * MIB)
