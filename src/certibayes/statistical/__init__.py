"""Statistical certificates: what holds for weights that are drawn afresh, with a confidence.

``certify`` proves things about fixed weight samples. Here the weights are random, w ~ posterior, and two quantities
of the posterior itself are bounded from n independent draws of it:

* the robust probability   P_w[ network w classifies every input of the ball as y ],   by ``robust_probability``;
* the worst-case predictive   E_w[ min over the ball of softmax_c f^w ],   by ``posterior_predictive_bounds``.

No network's true minimum is known, only a certified bound: l_c(w) <= softmax_c f^w(x) <= u_c(w) for all x of the ball.
These bounds are functions of w alone, so over independent draws they are independent and identically distributed
with values in [0, 1], and concentration inequalities bound E_w[l_c] and E_w[u_c]. What is proved is on the safe side,

    min_x E_w[ softmax_c f^w(x) ]  >=  E_w[ min_x softmax_c f^w(x) ]  >=  E_w[ l_c(w) ].

A union bound makes all figures of a point hold jointly; with ``joint``, those of all points. It needs no independence
between classes or points, so one set of draws serves all. Cardelli et al., "Statistical guarantees for the robustness
of Bayesian neural networks", IJCAI 2019, and Wicker et al., "Probabilistic safety for Bayesian neural networks", UAI
2020, bound the first quantity.
"""

from certibayes.statistical import files  # noqa: F401 - lets load_certificate read them
from certibayes.statistical.concentration import samples_needed
from certibayes.statistical.predictive import posterior_predictive_bounds
from certibayes.statistical.results import FreshPredictorBounds, PredictiveBounds, RobustProbability
from certibayes.statistical.robust import robust_probability
from certibayes.statistical.trial import Trial

__all__ = [
    "FreshPredictorBounds",
    "PredictiveBounds",
    "RobustProbability",
    "Trial",
    "posterior_predictive_bounds",
    "robust_probability",
    "samples_needed",
]
