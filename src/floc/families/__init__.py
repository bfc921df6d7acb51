"""The video model families of transformers: one table, shared by encoders, captured videos and hosts."""

from floc.families.table import FAMILIES, ModelFamily, find_family

__all__ = ["FAMILIES", "ModelFamily", "find_family"]
