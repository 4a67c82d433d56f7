"""Likelihoods by name."""

from __future__ import annotations

from typing import Any

from certibayes.errors import InvalidInput
from certibayes.likelihoods.adversary import CROWNIBP, IBP, PGD
from certibayes.likelihoods.base import Likelihood
from certibayes.likelihoods.categorical import Categorical, RobustCategorical
from certibayes.likelihoods.radius import TwoPoint
from certibayes.support.names import nearest

ADVERSARIES = {"ibp": IBP, "crown-ibp": CROWNIBP, "pgd": PGD}
NAMES = ("standard", *ADVERSARIES)


def as_likelihood(value: Any, eps: float | None = None, **settings: Any) -> Likelihood:
    """Return a likelihood as it is, and a name as the likelihood of that name.

    Args:
        value: such as ``Categorical()`` or ``"ibp"``.
        eps: radius to be certified, which a robust likelihood needs.
        settings: of the robust likelihood.

    Raises:
        InvalidInput: it is neither, or a robust likelihood is named without a radius.
    """
    if isinstance(value, Likelihood):
        return value
    if isinstance(value, type) and issubclass(value, Likelihood):
        raise InvalidInput(f"likelihood is the class {value.__name__}; pass an instance: {value.__name__}().")
    name = value.lower().replace("_", "-") if isinstance(value, str) else None
    if name == "standard":
        return Categorical()
    if name not in ADVERSARIES:
        meant = nearest(value, NAMES) if isinstance(value, str) else ""
        raise InvalidInput(
            f"likelihood must be a certibayes Likelihood such as Categorical(), or one of the names "
            f"{', '.join(NAMES)}; got {value!r}{meant}."
        )
    if eps is None:
        raise InvalidInput(f"the likelihood {value!r} needs a radius, such as cb.RobustCategorical(eps=0.1).")
    return RobustCategorical(TwoPoint.for_radius(eps), ADVERSARIES[name](), **settings)
