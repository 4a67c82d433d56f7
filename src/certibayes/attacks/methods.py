"""Attacks by name, and whatever is given as an attack made into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from certibayes.attacks.apgd import AutoPGD
from certibayes.attacks.base import Attack
from certibayes.attacks.ensemble import Ensemble
from certibayes.attacks.fgsm import FGSM
from certibayes.attacks.pgd import PGD
from certibayes.attacks.square import Square
from certibayes.errors import InvalidInput

METHODS: dict[str, Attack] = {
    attack.name: attack for attack in (FGSM(), PGD(), AutoPGD("cross-entropy"), AutoPGD("dlr"), Square())
}
"""Attacks by name."""

GROUPS: dict[str, Ensemble] = {
    "apgd": Ensemble((AutoPGD("cross-entropy"), AutoPGD("dlr"))),
    "ensemble": Ensemble(),
}
"""Ensembles by name."""

AnyAttack = str | Attack | Ensemble
"""What can be given where an attack is asked for."""


def as_attack(method: AnyAttack | Sequence[AnyAttack], **settings: Any) -> Attack | Ensemble:
    """Return an attack that was given by itself, by its name, or as a list of these.

    Args:
        method: one of ``METHODS`` or ``GROUPS``, an object, or several in order.
        **settings: of attacks that are given by name, such as ``steps`` and ``queries``; each attack takes those that
            it knows, and None leaves its default.
    """
    if isinstance(method, Attack | Ensemble):
        return method
    if isinstance(method, type) and issubclass(method, Attack | Ensemble):
        raise InvalidInput(f"method is the class {method.__name__}; give an object: method={method.__name__}().")
    if isinstance(method, str) and method in METHODS:
        return _with_settings(METHODS[method], settings)
    if isinstance(method, str) and method in GROUPS:
        return Ensemble(tuple(_with_settings(attack, settings) for attack in GROUPS[method].attacks))
    if isinstance(method, list | tuple):
        return Ensemble(tuple(part for each in method for part in members(as_attack(each, **settings))))
    raise InvalidInput(
        f"method must be one of {', '.join((*METHODS, *GROUPS))}, an object of certibayes.attacks such as "
        f"PGD(steps=100), or a list of these; got {_described(method)}."
    )


def members(attack: Attack | Ensemble) -> tuple[Attack, ...]:
    """Return the attacks of an ensemble, or the one that it is."""
    return attack.attacks if isinstance(attack, Ensemble) else (attack,)


def _with_settings(attack: Attack, settings: dict[str, Any]) -> Attack:
    """Return an attack of ours with those of the settings that it knows."""
    known = {field.name for each in METHODS.values() for field in fields(each)}
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise InvalidInput(f"no attack has a setting {unknown[0]!r}; there are {', '.join(sorted(known))}.")
    own = {field.name for field in fields(attack)}
    return replace(attack, **{name: value for name, value in settings.items() if name in own and value is not None})


def _described(method: object) -> str:
    """Name the class with its module: the adversary of a likelihood is called PGD as well."""
    if isinstance(method, str | type):
        return repr(method)
    return f"{method!r}, a {type(method).__module__}.{type(method).__qualname__}"
