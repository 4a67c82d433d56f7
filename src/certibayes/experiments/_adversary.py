"""The adversary that a spec's flat settings mean."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.likelihoods import ADVERSARIES, IBP, Adversary

OF_ATTACK = {"attack_steps": "steps", "attack_step_size": "step_size"}
"""Settings of the attack, which is the adversary itself or a part of it, with their names there."""

NAMES = ("alpha", "box_fraction", "attack_scale", *OF_ATTACK)
"""Settings that only some adversaries have."""


def settings_of_adversary(adversary: Adversary) -> dict[str, Any]:
    """Return an adversary's settings under their names in a spec; None for those it does not have."""
    attack = getattr(adversary, "attack", adversary)
    own = {name: getattr(adversary, name, None) for name in NAMES if name not in OF_ATTACK}
    return own | {name: getattr(attack, field, None) for name, field in OF_ATTACK.items()}


def make_adversary(likelihood: str, margins: bool, given: dict[str, Any]) -> Adversary:
    """Make the adversary of a likelihood by name; the standard one has an idle one.

    Args:
        likelihood: its name.
        margins: for ``ibp``.
        given: settings that are not left to the adversary, under their names in a spec.

    Raises:
        InvalidInput: it has no such setting.
    """
    adversary = ADVERSARIES.get(likelihood, IBP())
    known = settings_of_adversary(adversary)
    for name in given:
        if known[name] is None:
            having = [other for other, each in ADVERSARIES.items() if settings_of_adversary(each)[name] is not None]
            raise InvalidInput(f"the likelihood {likelihood} has no {name}; {', '.join(having)} have.")
    if isinstance(adversary, IBP):
        return replace(adversary, margins=margins)
    steps = {field: given[name] for name, field in OF_ATTACK.items() if name in given}
    own = {name: value for name, value in given.items() if name not in OF_ATTACK}
    if any(field.name == "attack" for field in fields(adversary)):
        own["attack"] = replace(getattr(adversary, "attack"), **steps)  # noqa: B009 - not every adversary has one
    else:
        own |= steps
    return replace(adversary, **own)
