"""Draws of a Markov chain, or members of an ensemble, collected one after the other in room set aside for them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from certibayes.networks import Params


class Draws(NamedTuple):
    """What a sampler has kept so far.

    Attributes:
        values: by parameter, (draws, ...); those that are still to come are 0.
        kept: number of draws made, a 0-d tensor.
    """

    values: dict[str, Tensor]
    kept: Tensor


def room_for(draws: int, params: Params) -> Draws:
    """Return room for so many draws of ``params``, with none of it taken."""
    values = {name: p.new_zeros(draws, *p.shape) for name, p in params.items()}
    return Draws(values, next(iter(params.values())).new_zeros(()))


def with_draw(draws: Draws, params: Params) -> Draws:
    """Return the draws with a copy of ``params`` in the next place."""
    place = draws.kept.long()[None]
    values = {name: v.index_copy(0, place, params[name][None]) for name, v in draws.values.items()}
    return Draws(values, draws.kept + 1)
