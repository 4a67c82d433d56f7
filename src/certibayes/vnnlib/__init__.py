"""Specifications of VNN-LIB 1.0: boxes of inputs, and linear constraints that make outputs unsafe."""

from certibayes.vnnlib.parser import parse_vnnlib, read_vnnlib
from certibayes.vnnlib.specification import Case, Conjunction, Constraint, Specification
from certibayes.vnnlib.writer import decimal, format_vnnlib

__all__ = [
    "Case",
    "Conjunction",
    "Constraint",
    "Specification",
    "decimal",
    "format_vnnlib",
    "parse_vnnlib",
    "read_vnnlib",
]
