"""PyPI's torchvision is compiled for CUDA, and does not load beside a torch for CPUs.

What prepares pictures is plain Python on torch. All that keeps it from loading is a file that tells the shapes of
compiled operators, which nothing here uses: it is taken for loaded.
"""

import sys
from types import ModuleType

NAME = "torchvision._meta_registrations"
sys.modules[NAME] = ModuleType(NAME)
