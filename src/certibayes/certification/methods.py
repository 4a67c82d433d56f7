"""Methods of certification: which stages, in which order.

A method is an object of settings with a list of stages; its name is a shortcut for its defaults. This file is the only
place where the order is written down: a new stage is a file in ``stages/`` and a line here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from certibayes.certification._intermediates import worth_tightening
from certibayes.certification._stage import Budgeted, InParts, Stage, Tightened, WhereSupported
from certibayes.certification.network_bounds import BOUNDS, INTERMEDIATES
from certibayes.certification.stages import (
    Attack,
    JointBound,
    LogitBounds,
    MarginBounds,
    Refine,
    RefineRegained,
    SplitActivations,
    SplitInputs,
)
from certibayes.certification.stages.attack import QUICK
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor
from certibayes.regions import InputRegion


@dataclass(frozen=True)
class Method:
    """How points are proved.

    Attributes:
        bounds: how networks are bounded: ``"ibp"``, ``"crown"``, ``"alpha-crown"`` or ``"hull"``, from loose and cheap
            to tight and costly; the tightest that is tried.
        intermediates: what linear bounds know of the layers in between: ``"ibp"`` for intervals, ``"crown"`` for what
            CROWN itself says of them, which is tighter in deep networks and costs more, not with ``"ibp"`` bounds;
            ``"alpha-crown"`` for that with slopes optimized for every unit; or ``"auto"`` for CROWN's where intervals
            explode from layer to layer. The certificate names what was taken.
    """

    name: ClassVar[str]
    harder: ClassVar[str]
    """What to try on points that this method leaves open."""

    bounds: str = "ibp"
    intermediates: str = "ibp"

    def __post_init__(self) -> None:
        if self.bounds not in BOUNDS:
            raise InvalidInput(f"bounds must be one of {', '.join(BOUNDS)}, got {self.bounds!r}.")
        known = (*INTERMEDIATES, "auto")
        if self.intermediates not in known:
            raise InvalidInput(f"intermediates must be one of {', '.join(known)}, got {self.intermediates!r}.")
        if self.intermediates not in ("ibp", "auto") and self.bounds == "ibp":
            raise InvalidInput(
                f"intermediates={self.intermediates!r} is for linear bounds; ibp has intervals in every layer. "
                'Take bounds="crown", "alpha-crown" or "hull" with it.'
            )

    def decided(self, predictor: Predictor, region: InputRegion) -> Method:
        """Return the method with ``"auto"`` intermediates decided for the networks and points in question."""
        if self.intermediates != "auto":
            return self
        worth = self.bounds != "ibp" and worth_tightening(predictor, region)
        return replace(self, intermediates="crown" if worth else "ibp")

    @property
    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """What is done, one stage after the other; each is for points that those before it leave open."""

    @property
    def seconds(self) -> float | None:
        """The budget for attacks and branch and bound, if there is one."""
        return None

    def with_seconds(self, seconds: float) -> Method:
        """Return the method with another budget; methods without one are as they are."""
        return self

    @property
    def _quick_attack(self) -> tuple[Stage, ...]:
        """An attack where intermediates are CROWN's: it takes a hundredth of their time, and breaks many points."""
        return (Attack(QUICK),) if self.intermediates in ("crown", "alpha-crown") else ()

    def _logits(self, rule: str) -> tuple[Stage, ...]:
        """Bounds on logits by one rule: first all points, then, for those that are open, whatever is tighter."""
        first = min(1, BOUNDS.index(self.bounds))
        tighter = BOUNDS[first + 1 : BOUNDS.index(self.bounds) + 1]
        return (LogitBounds(BOUNDS[first], rule), *(LogitBounds(bounds, rule, only_open=True) for bounds in tighter))


@dataclass(frozen=True)
class Auto(Method):
    """Intervals by the rule ``pairwise``; where they do not suffice, the last layer elided, then elided CROWN.

    Layers that have interval rules only are bounded by these. Where intermediates are CROWN's, which makes networks
    costly, each is bounded for the points alone that those before it leave undecided, see ``MarginBounds``, and that
    a quick attack does not break.
    """

    name: ClassVar[str] = "auto"
    harder: ClassVar[str] = 'method="best"'

    bounds: str = "crown"
    intermediates: str = "auto"

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See ``Method``."""
        tighter = BOUNDS[: min(BOUNDS.index("alpha-crown"), BOUNDS.index(self.bounds)) + 1]
        elided, *linear = (MarginBounds(bounds, until_decided=True, gives_up=True) for bounds in tighter)
        stages: tuple[Stage, ...] = (elided, *self._quick_attack, *linear)
        return (LogitBounds("ibp"), *(WhereSupported(stage) for stage in stages))


@dataclass(frozen=True)
class Theorem1(Method):
    """The paper's rule: the mean lower bound of the label against each rival's mean upper bound (Theorem 1)."""

    name: ClassVar[str] = "theorem1"
    harder: ClassVar[str] = 'method="auto"'

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See ``Method``."""
        return self._logits("theorem1")


@dataclass(frozen=True)
class Pairwise(Method):
    """For each network and rival the smallest softmax_y - softmax_c over the box of logits; the mean over networks."""

    name: ClassVar[str] = "pairwise"
    harder: ClassVar[str] = 'method="auto"'

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See ``Method``."""
        return self._logits("pairwise")


@dataclass(frozen=True)
class Elided(Method):
    """The better of ``pairwise`` and the same from margins z_y - z_c, with the last layer folded in."""

    name: ClassVar[str] = "elided"
    harder: ClassVar[str] = 'method="best"'

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See ``Method``."""
        logits = LogitBounds("ibp" if self.bounds == "ibp" else "crown")
        if self.bounds == "hull":
            refined = InParts((Refine("hull", rivals="all", until_decided=False),), rivals="all")
            return (logits, MarginBounds("crown"), refined)
        return (logits, MarginBounds(self.bounds))


@dataclass(frozen=True)
class Joint(Method):
    """One input for all networks: the mean of linear functions below their margins; see ``certification._joint``."""

    name: ClassVar[str] = "joint"
    harder: ClassVar[str] = 'method="best"'

    bounds: str = "crown"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bounds == "ibp":
            raise InvalidInput('the method joint needs linear bounds: bounds="crown", "alpha-crown" or "hull".')

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See ``Method``."""
        margins = MarginBounds("crown" if self.bounds == "hull" else self.bounds)
        return (LogitBounds("crown"), margins, InParts((Refine(self.bounds, until_decided=False), JointBound())))


@dataclass(frozen=True)
class Best(Method):
    """Everything there is, from cheap to costly, each for the points and rivals that are still open.

    Attributes:
        bounds: see ``Method``.
        intermediates: see ``Method``. Where they are CROWN's, points that stay open have their slopes optimized, too.
        budget: seconds for attacks and branch and bound on points that the bounds leave open; None for neither. What
            the bounds themselves take comes on top; ``"crown"`` is quick. Without a budget, points that the first
            networks show to be far out of reach are spared the costly bounds.
    """

    name: ClassVar[str] = "best"

    bounds: str = "hull"
    intermediates: str = "auto"
    budget: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None and not (
            isinstance(self.budget, (int, float)) and math.isfinite(self.budget) and self.budget > 0
        ):
            raise InvalidInput(f"budget is a positive number of seconds, got {self.budget!r}.")

    @property
    def harder(self) -> str:  # type: ignore[override]
        """See ``Method``."""
        if self.budget is not None:
            return f"a budget of more than {self.budget:g} seconds"
        return "method=certibayes.Best(budget=SECONDS), which splits and attacks"

    @property
    def seconds(self) -> float | None:
        """See ``Method``."""
        return self.budget

    def with_seconds(self, seconds: float) -> Method:
        """See ``Method``."""
        return replace(self, budget=seconds)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See ``Method``."""
        cheap: tuple[Stage, ...] = (LogitBounds("ibp"), MarginBounds("ibp", "open"), MarginBounds("ibp"))
        if self.bounds != "ibp":
            # CROWN's intermediates cost more than all rivals together.
            rivals = ("all",) if self._quick_attack else ("open", "all")
            cheap += self._quick_attack
            cheap += tuple(MarginBounds("crown", which, with_logits=True, until_decided=True) for which in rivals)
        if self.bounds == "hull":
            # An attack is cheaper than these bounds, which are not for points that it breaks.
            cheap += (Budgeted((Attack(),)),)
        return (*cheap, InParts(self._costly))

    @property
    def _costly(self) -> tuple[Stage, ...]:
        if self.budget is None:
            if self.bounds == "ibp":
                return ()
            refine, again = Tightened(Refine(self.bounds, gives_up=True)), Tightened(RefineRegained(self.bounds))
            return (refine, JointBound(), again, JointBound())
        splits: tuple[Stage, ...] = (SplitInputs(), SplitActivations())
        if self.bounds == "hull":
            return (Tightened(Refine("hull")), JointBound(), Budgeted(splits))
        first: tuple[Stage, ...] = () if self.bounds == "ibp" else (Tightened(Refine(self.bounds)), JointBound())
        return (*first, Budgeted((Attack(), Tightened(Refine("hull")), JointBound(), *splits)))


METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (Auto, Theorem1, Pairwise, Elided, Joint, Best)}
"""By name."""


def as_method(method: str | Method, **settings: Any) -> Method:
    """Return a method that was given by itself or by its name.

    Args:
        method: one of ``METHODS``, or an object.
        **settings: of a method that is given by name; None leaves its default.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, type) and issubclass(method, Method):
        raise InvalidInput(f"method is the class {method.__name__}; give an object: method={method.__name__}().")
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidInput(
            f"method must be one of {', '.join(METHODS)}, or an object such as certibayes.Best(bounds='crown'); "
            f"got {method!r}."
        )
    chosen = {name: value for name, value in settings.items() if value is not None}
    if "budget" in chosen and method != "best":
        raise InvalidInput(f"only the method best can use a budget, not {method}.")
    return METHODS[method](**chosen)
