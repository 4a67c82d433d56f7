"""Several attacks in order, each on the points that the ones before have left standing.

What stands in the end stands against all of them, so a longer list never leaves more. Each attack draws from a stream
of its own, named after it: an attack does the same whatever comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.attack.apgd import APGDSettings, auto_pgd
from certibayes.attack.fgsm import fast_gradient
from certibayes.attack.pgd import PGDSettings, projected_gradient
from certibayes.attack.result import STANDING, first_broken
from certibayes.attack.search import Search
from certibayes.attack.square import SquareSettings, square
from certibayes.errors import InvalidInput

METHODS = ("fgsm", "pgd", "apgd-ce", "apgd-dlr", "square")
GROUPS = {
    "apgd": ("apgd-ce", "apgd-dlr"),
    # FGSM is not among them: it is one step of what PGD does, and where it came first PGD would see other batches.
    "ensemble": ("pgd", "apgd-ce", "apgd-dlr", "square"),
}


class Budget(NamedTuple):
    """How much each attack may do.

    Attributes:
        steps: iterations a restart of PGD and Auto-PGD.
        restarts: of PGD and Auto-PGD; the first starts at the point itself, the others at random.
        queries: inputs that Square tries for each point.
        losses: of PGD, taken in turn by the restarts.
        momentum: of PGD.
        step_size: of PGD, relative to the radius; None takes 2.5 / steps.
    """

    steps: int = 40
    restarts: int = 4
    queries: int = 500
    losses: tuple[str, ...] = ("margin", "cross-entropy")
    momentum: float = 0.0
    step_size: float | None = None

    @property
    def pgd(self) -> PGDSettings:
        """Settings of PGD."""
        return PGDSettings(self.steps, self.restarts, self.step_size, self.losses, self.momentum)

    def looks(self, method: str) -> int:
        """Return how often a method may look at the model, once for each iterate."""
        return {"fgsm": 2, "square": self.queries}.get(method, self.restarts * (self.steps + 1))


def methods_of(method: str | Sequence[str]) -> tuple[str, ...]:
    """Spell out names of attacks and of groups of them."""
    names = (method,) if isinstance(method, str) else tuple(method)
    found = tuple(each for name in names for each in GROUPS.get(name, (name,)))
    if not found or any(name not in METHODS for name in found):
        raise InvalidInput(
            f"method must be one of {', '.join((*METHODS, *GROUPS))}, or a list of them; got {method!r}."
        )
    return tuple(dict.fromkeys(found))


def run_method(method: str, search: Search, budget: Budget, generator: torch.Generator) -> None:
    """Run one attack on the points that stand."""
    if method == "fgsm":
        fast_gradient(search)
    elif method == "pgd":
        projected_gradient(search, budget.pgd, generator)
    elif method == "square":
        square(search, SquareSettings(budget.queries), generator)
    else:
        loss = "dlr" if method == "apgd-dlr" else "cross-entropy"
        auto_pgd(search, APGDSettings(budget.steps, budget.restarts, loss), generator)


def run_in_order(
    methods: Sequence[str],
    search: Search,
    budget: Budget,
    stream: Callable[[str], torch.Generator],
    finished: Callable[[str], None],
) -> Tensor:
    """Run attacks in order on a batch; after each, the judge looks at the whole batch again.

    Args:
        methods: names of attacks.
        search: the batch.
        budget: how much each may do.
        stream: random numbers for an attack, by its name.
        finished: told each attack's name when it is over.

    Returns:
        Which attack broke each point, (B,), as in ``Attacked``.
    """
    broken_by = torch.full_like(search.y, STANDING)
    broken_by = first_broken(broken_by, search.predicted != search.y, 0)
    for stage, method in enumerate(methods, 1):
        run_method(method, search, budget, stream(method))
        search.rejudge()
        broken_by = first_broken(broken_by, search.predicted != search.y, stage)
        finished(method)
    return broken_by
