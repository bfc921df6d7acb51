"""Let PyPI's torchvision load beside a CPU build of torch. For development only.

PyPI's torchvision is compiled for CUDA. Its image processing is plain Python and works with any build of torch, but its
import describes two compiled operators, and fails if they do not exist. This module defines them, without code, if
torchvision could not load its own. It costs nothing until torchvision is imported.

`python tools/torchvision_operators.py` installs it into the environment of that Python.
"""

import sys

OPERATORS = ("nms", "qnms")
FIRST_USE = "torchvision._meta_registrations"  # imported after torchvision.extension, which loads the operators


class OperatorFinder:
    """An import hook that defines the operators right before their first use. It finds no module."""

    library = None  # the operators exist as long as this

    def find_spec(self, name, path=None, target=None):
        """Define the operators if the module `name` uses them and they are missing."""
        if name == FIRST_USE and not sys.modules["torchvision.extension"]._has_ops():
            import torch

            OperatorFinder.library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in OPERATORS:
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def install():
    """Copy this module into the environment, with a .pth file that imports it when Python starts."""
    import shutil
    import sysconfig
    from pathlib import Path

    packages = Path(sysconfig.get_path("purelib"))
    shutil.copy(__file__, packages)
    (packages / "torchvision_operators.pth").write_text("import torchvision_operators\n")


if __name__ == "__main__":
    install()
else:
    sys.meta_path.insert(0, OperatorFinder())
