"""Let PyPI's torchvision, which is compiled for CUDA, load with a CPU build of torch.

Its image processing is plain Python. Only the module that registers compiled operators fails to load. Nothing here uses
those operators, so an empty module replaces it.
"""

import sys
from types import ModuleType

NAME = "torchvision._meta_registrations"
sys.modules[NAME] = ModuleType(NAME)
