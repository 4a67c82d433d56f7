"""From torch's modules and functions to our operations: one short entry each.

A module's entry returns the operation and, by role, the attributes that hold its weights. A function's entry
has the signature of the function it stands for; tensor arguments are ``torch.fx`` nodes. Register your own
with ``lower_module`` and ``lower_function``; later registrations win.
"""

from certibayes.networks.lowering import activations, affine, arithmetic, norms, orders, pooling, products, shapes
from certibayes.networks.lowering.registry import (
    AfterEach,
    Beside,
    ByShape,
    Chain,
    Entry,
    FunctionEntry,
    Lowered,
    Meaning,
    ModuleEntry,
    Parts,
    functions,
    lower_function,
    lower_module,
    modules,
)

__all__ = [
    "AfterEach",
    "Beside",
    "ByShape",
    "Chain",
    "Entry",
    "FunctionEntry",
    "Lowered",
    "Meaning",
    "ModuleEntry",
    "Parts",
    "activations",
    "affine",
    "arithmetic",
    "functions",
    "lower_function",
    "lower_module",
    "modules",
    "norms",
    "orders",
    "pooling",
    "products",
    "shapes",
]
