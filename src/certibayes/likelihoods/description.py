"""A likelihood from its description, as a posterior's metadata hold it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from certibayes.errors import CertibayesError, InvalidInput
from certibayes.likelihoods.adversaries import CCIBP, CROWNIBP, IBP, MTLIBP, PGD, SABR, ExpIBP
from certibayes.likelihoods.base import Likelihood
from certibayes.likelihoods.categorical import Categorical
from certibayes.likelihoods.curriculum import Curriculum
from certibayes.likelihoods.radius import Exponential, Rayleigh, TwoPoint
from certibayes.likelihoods.ramp import LinearRamp, SmoothRamp
from certibayes.likelihoods.robust_categorical import RobustCategorical
from certibayes.likelihoods.robust_gaussian import RobustGaussian

KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Categorical, RobustCategorical, RobustGaussian, TwoPoint, Rayleigh, Exponential, IBP, CROWNIBP, PGD, SABR,
        CCIBP, MTLIBP, ExpIBP, LinearRamp, SmoothRamp, Curriculum,
    )
}  # fmt: skip


def likelihood_from(description: Any) -> Likelihood:
    """Return the likelihood with this description.

    Args:
        description: what ``Likelihood.describe`` returned, or what JSON made of it.

    Raises:
        InvalidInput: the description does not say all, such as that of a distribution of radii by a function.
    """
    try:
        found = _made(description)
    except (TypeError, ValueError, CertibayesError):
        found = None
    # Only what describes itself in the same words is the same likelihood.
    if not isinstance(found, Likelihood) or _plain(found.describe()) != _plain(description):
        name = description.get("name") if isinstance(description, Mapping) else description
        raise InvalidInput(
            f"the likelihood {name!r} cannot be made of its description alone. Pass the one that was trained with: "
            "likelihood=..."
        )
    return found


def _made(value: Any) -> Any:
    if not (isinstance(value, Mapping) and value.get("name") in KINDS):
        return tuple(value) if isinstance(value, list) else value
    kind = KINDS[value["name"]]
    arguments = inspect.signature(kind).parameters
    settings = {name: _made(each) for name, each in value.items() if name in arguments}
    eps = settings.pop("eps", None)
    if eps is not None and "p_eps" in settings:
        # The distribution knows for which radius it was made, and only one of the two can be given.
        settings["p_eps"] = settings["p_eps"]._made_for(eps)
    return kind(**settings)


def _plain(description: Any) -> Any:
    return json.loads(json.dumps(description))
