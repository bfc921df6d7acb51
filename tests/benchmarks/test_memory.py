import pytest
import torch

from benchmarks.memory import measure_growth

MIB = 1 << 20


@pytest.mark.parametrize("mib", [0, 40, 80])
def test_growth_is_the_peak_of_a_call(mib):
    def call():
        torch.ones(mib * MIB, dtype=torch.uint8)  # freed before the call ends

    call()
    growth = measure_growth(call, torch.device("cpu"))
    if growth is None:
        pytest.skip("needs Linux: /proc/self/clear_refs cannot be written")
    assert growth == pytest.approx(mib * MIB, abs=8 * MIB)
