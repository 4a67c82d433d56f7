"""Several attacks in order, each on the points that the ones before have not broken.

What is robust in the end is robust against all of them, so a longer list never leaves more. Each attack draws from a
stream of its own, named after it: an attack does the same whatever comes after it. The default list is that of
AutoAttack (Croce & Hein, 2020), with PGD in the place of FAB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.attacks.apgd import AutoPGD
from certibayes.attacks.base import Attack
from certibayes.attacks.pgd import PGD
from certibayes.attacks.result import UNBROKEN, first_broken
from certibayes.attacks.search import Search
from certibayes.attacks.square import Square
from certibayes.errors import InvalidInput


@dataclass(frozen=True)
class Ensemble:
    """Attacks in order.

    Attributes:
        attacks: one or more, in order; of equal ones only the first runs.
    """

    # FGSM is not among them: it is one step of what PGD does, and where it came first PGD would see other batches.
    attacks: tuple[Attack, ...] = (PGD(), AutoPGD("cross-entropy"), AutoPGD("dlr"), Square())

    def __post_init__(self) -> None:
        given = tuple(self.attacks) if isinstance(self.attacks, list | tuple) else (self.attacks,)
        if not given or not all(isinstance(each, Attack) for each in given):
            raise InvalidInput(
                f"an ensemble is made of attacks, objects such as PGD(); got {self.attacks!r}. "
                "Names and other ensembles may be given in the list of attack(method=[...])."
            )
        object.__setattr__(self, "attacks", tuple(dict.fromkeys(given)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the attacks, each once: a second PGD with other settings is ``"pgd-2"``."""
        seen: Counter[str] = Counter()
        names = []
        for attack in self.attacks:
            seen[attack.name] += 1
            names.append(attack.name if seen[attack.name] == 1 else f"{attack.name}-{seen[attack.name]}")
        return tuple(names)

    @property
    def evaluations(self) -> int:
        """The largest number of times that all attacks may evaluate the model."""
        return sum(attack.evaluations for attack in self.attacks)

    def run(
        self, search: Search, stream: Callable[[str], torch.Generator], finished: Callable[[Attack], None]
    ) -> Tensor:
        """Run the attacks on a batch; after each, the whole batch is evaluated again.

        Args:
            search: the batch.
            stream: random numbers for an attack, by its name.
            finished: called with each attack when it is over.

        Returns:
            Which attack broke each point, (B,), as in ``Attacked``.
        """
        broken_by = torch.full_like(search.y, UNBROKEN)
        broken_by = first_broken(broken_by, search.predicted != search.y, 0)
        for stage, (name, attack) in enumerate(zip(self.names, self.attacks, strict=True), 1):
            attack.run(search, stream(name))
            search.reevaluate()
            broken_by = first_broken(broken_by, search.predicted != search.y, stage)
            finished(attack)
        return broken_by
