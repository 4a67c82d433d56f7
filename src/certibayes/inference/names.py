"""Algorithms by name."""

from __future__ import annotations

from typing import Any

from certibayes.errors import InvalidInput
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.bbb import BBB
from certibayes.inference.ensemble import DeepEnsemble
from certibayes.inference.hmc import HMC
from certibayes.inference.ivon import IVON
from certibayes.inference.laplace import Laplace
from certibayes.inference.map import MAP
from certibayes.inference.noisy_adam import NoisyAdam
from certibayes.inference.sghmc import SGHMC
from certibayes.inference.snapshot import SnapshotEnsemble
from certibayes.inference.swag import SWAG
from certibayes.inference.vogn import VOGN
from certibayes.support.names import nearest

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "map": MAP,
    "swag": SWAG,
    "noisy-adam": NoisyAdam,
    "vogn": VOGN,
    "bbb": BBB,
    "hmc": HMC,
    "ivon": IVON,
    "sghmc": SGHMC,
    "laplace": Laplace,
    "ensemble": DeepEnsemble,
    "snapshot": SnapshotEnsemble,
}
"""What ``algorithm="..."`` may name."""


def as_algorithm(value: Any) -> Algorithm[Any]:
    """Return an algorithm as it is, and a name as the algorithm of that name with its default settings.

    Args:
        value: such as ``VOGN(lr=0.01)`` or ``"vogn"``; of a name, neither case nor the kind of dash matters.

    Raises:
        InvalidInput: it is neither.
    """
    if isinstance(value, Algorithm):
        return value
    if isinstance(value, type) and issubclass(value, Algorithm):
        raise InvalidInput(f"algorithm is the class {value.__name__}; pass an instance: {value.__name__}().")
    name = value.lower().replace("_", "-") if isinstance(value, str) else None
    if name in ALGORITHMS:
        return ALGORITHMS[name]()
    meant = nearest(value, ALGORITHMS) if isinstance(value, str) else ""
    raise InvalidInput(
        f"algorithm must be a certibayes Algorithm such as VOGN(), or one of the names {', '.join(ALGORITHMS)}; got "
        f"{value!r}{meant}."
    )
