"""Likelihoods by name."""

from __future__ import annotations

import difflib
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.likelihoods.adversaries import CCIBP, CROWNIBP, IBP, MTLIBP, PGD, SABR, Adversary, ExpIBP
from certibayes.likelihoods.base import Likelihood
from certibayes.likelihoods.categorical import Categorical
from certibayes.likelihoods.robust_categorical import RobustCategorical

STANDARD = "standard"
ADVERSARIES: dict[str, Adversary] = {
    "ibp": IBP(),
    "crown-ibp": CROWNIBP(),
    "pgd": PGD(),
    "sabr": SABR(),
    "cc-ibp": CCIBP(),
    "mtl-ibp": MTLIBP(),
    "exp-ibp": ExpIBP(),
}
LIKELIHOODS = (STANDARD, *ADVERSARIES)
"""Names that ``as_likelihood`` knows."""


def as_likelihood(value: Likelihood | str, eps: float | None = None, **settings: Any) -> Likelihood:
    """Return the likelihood that a user means; for classification, where it is given by name.

    Args:
        value: a likelihood, which stays as it is; or ``"standard"``, ``"ibp"``, ``"crown-ibp"``, ``"pgd"``,
            ``"sabr"``, ``"cc-ibp"``, ``"mtl-ibp"`` or ``"exp-ibp"``.
        eps: the radius that is to be certified. Robust names need it, nothing else does.
        settings: of ``RobustCategorical``, for robust names.

    Raises:
        InvalidInput: there is no such likelihood, or its radius is missing.
    """
    if isinstance(value, Likelihood):
        return value
    if isinstance(value, type) and issubclass(value, Likelihood):
        example = "RobustCategorical(eps=0.1)" if value is RobustCategorical else f"{value.__name__}()"
        raise InvalidInput(f"likelihood is the class {value.__name__}; pass an instance: {example}.")
    name = value.lower().replace("_", "-") if isinstance(value, str) else ""
    if name == STANDARD:
        return Categorical()
    if name not in ADVERSARIES:
        near = difflib.get_close_matches(name, LIKELIHOODS, n=1)
        raise InvalidInput(
            f"a likelihood is an object, such as cb.RobustCategorical(eps=0.1), or one of {', '.join(LIKELIHOODS)}; "
            f"got {value!r}." + (f" Did you mean {near[0]!r}?" if near else "")
        )
    adversary = ADVERSARIES[name]
    if eps is None and "p_eps" not in settings:
        choice = "" if name == "ibp" else f", adversary=cb.{adversary}"
        raise InvalidInput(f'the likelihood "{name}" needs a radius: cb.RobustCategorical(eps=0.1{choice}).')
    return RobustCategorical(**{"eps": eps, "adversary": adversary, **settings})
