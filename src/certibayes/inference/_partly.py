"""Partly random networks: some parameters are inferred, and the others are found by MAP along with them.

    w = (u, v),        q(u) by any algorithm,        v* = argmax  E_q(u)[ Σ_i log p(y_i | x_i, u, v) ] + log p(v),

the expectation by the samples that the algorithm draws anyway, the maximum by Adam. One gradient with respect to
(u, v) serves both, so that a step costs no more than with all of w random. VOGN needs squared gradients of single
examples too: it takes those of u alone, in a pass of its own. In the posterior v is a constant. It pays no KL, so
evidence lower bounds compare only where the same parameters are random.

Iterates that are collected (SWAG, SGHMC, snapshots) must belong to one v: it rests from the first of them on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference.algorithm import Algorithm, Info, Sweep
from certibayes.inference.laplace import last_layer
from certibayes.inference.map import MAP
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Gradients, Noise
from certibayes.networks import Graph, Params
from certibayes.posteriors import Posterior
from certibayes.support.adam import Moments, adam_step, zero_moments
from certibayes.support.names import nearest

LAST = "last"
"""The last layer that has weights."""


def random_parameters(stochastic: str | Iterable[str] | None, graph: Graph) -> tuple[str, ...]:
    """Return the parameters that are to be random, in the network's order; all of them for None.

    Args:
        stochastic: ``"last"``, the name of a module or of a parameter, a pattern such as ``"*.weight"``, a list of
            these, or all of it in one string, with commas.
        graph: the network; its frozen parameters are buffers already.

    Raises:
        InvalidInput: nothing is named, or something that is not there.
    """
    if stochastic is None:
        return graph.parameters
    if isinstance(stochastic, str):
        stochastic = stochastic.split(",")
    words = list(stochastic) if isinstance(stochastic, Iterable) else [stochastic]
    if not all(isinstance(word, str) for word in words):
        raise InvalidInput(
            'stochastic names the parameters that are random: "last", a module such as "4", a pattern such as '
            f'"*.weight", or a list of these; got {stochastic!r}.'
        )
    words = [word.strip() for word in words if word.strip()]
    if not words:
        raise InvalidInput(
            "stochastic is empty, so nothing would be random. Name some parameters, or leave it out to have all of "
            'them random; for a single network there is algorithm="map".'
        )
    chosen = {name for word in words for name in _matching(word, graph)}
    return tuple(name for name in graph.parameters if name in chosen)


def _matching(word: str, graph: Graph) -> tuple[str, ...]:
    if word == LAST:
        return last_layer(graph)

    def meant(name: str) -> bool:
        return name == word or name.startswith(f"{word}.") or fnmatchcase(name, word)

    found = tuple(name for name in graph.parameters if meant(name))
    if found:
        return found
    if any(meant(name) for name in graph.buffers):
        raise InvalidInput(
            f"stochastic: {word!r} is frozen (requires_grad=False) or no parameter, so it cannot be random. Unfreeze "
            "it, or name others."
        )
    modules = {name.rpartition(".")[0] for name in graph.parameters} - {""}
    known = [LAST, *sorted(modules), *graph.parameters]
    raise InvalidInput(
        f"stochastic: no parameter matches {word!r}{nearest(word, known)}. The parameters are "
        f"{', '.join(graph.parameters)}."
    )


def require_partly(algorithm: Algorithm[Any], stochastic: Any, map_lr: Any) -> None:
    """Raise unless some parameters may be random and others not, with this algorithm."""
    if isinstance(map_lr, bool) or not isinstance(map_lr, Real) or not (math.isfinite(map_lr) and float(map_lr) >= 0.0):
        raise InvalidInput(
            f"map_lr is the learning rate of the parameters that are not random, a finite number >= 0, got {map_lr!r}."
        )
    if stochastic is None:
        return
    name = type(algorithm).__name__
    if type(algorithm) is MAP:
        raise InvalidInput(
            "stochastic names the parameters that are random, and with MAP nothing is. Leave it out, or take another "
            "algorithm; to keep parameters as they are, freeze them: requires_grad_(False)."
        )
    if algorithm.stacked:
        raise InvalidInput(
            f"the members of {name} are trained at once, each a network with a start of its own, and with stochastic "
            "they would share the other parameters. Train a run for each seed and put them together with Samples.join, "
            "take SnapshotEnsemble, or freeze the other parameters: requires_grad_(False)."
        )


class PartlyRandomState(NamedTuple):
    """State of inference for some parameters and MAP for the others.

    Attributes:
        inner: the algorithm's state, of the random parameters alone.
        others: the other parameters.
        moments: Adam's, of the others.
        resting: number of steps after which the others rest: those up to the first iterate that is collected, or all.
        step: steps made.
        lr: the algorithm's rate; that of the others is in proportion.
    """

    inner: Any
    others: dict[str, Tensor]
    moments: Moments
    resting: Tensor
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class PartlyRandom(Algorithm[PartlyRandomState]):
    """Any algorithm for the parameters of the target's graph, and Adam for all others that it is given.

    Attributes:
        inner: the algorithm.
        map_lr: learning rate of Adam, where the algorithm has its own ``lr``; it follows the same schedule.
        betas: decay of Adam's moments.
    """

    inner: Algorithm[Any]
    map_lr: float = MAP.lr
    betas: tuple[float, float] = MAP.betas

    def __post_init__(self) -> None:
        # What the algorithm says of itself holds here too, but for how its steps may be put together.
        for trait in Algorithm.__annotations__.keys() - {"lr", "elementwise", "stacked"}:
            object.__setattr__(self, trait, getattr(self.inner, trait))

    @property
    def lr(self) -> float:  # type: ignore[override]
        """Rate of the algorithm."""
        return self.inner.lr

    @property
    def burn_in_epochs(self) -> int:
        """See the base class."""
        return self.inner.burn_in_epochs

    @property
    def collects_after(self) -> float:
        """See the base class."""
        return self.inner.collects_after

    def init(self, target: Target, params: Params, generator: torch.Generator) -> PartlyRandomState:
        """Start the algorithm, with the others at the network's parameters."""
        random = {name: params[name] for name in target.graph.parameters}
        others = _without(random, dict(params))
        inner = self.inner.init(given(target, others), random, generator)
        steps = range(1, target.total_steps + 1)
        first = next((step for step in steps if self.inner.collects(target, step)), target.total_steps)
        step, lr = inner.step.clone(), inner.lr.clone()
        return PartlyRandomState(inner, others, zero_moments(others), torch.full_like(step, first), step, lr)

    def update(
        self, target: Target, state: PartlyRandomState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[PartlyRandomState, Info]:
        """Make a step of the algorithm, and one of Adam by the gradient at the same sample."""
        part = PartTarget.of(target, state.others)
        inner, info = self.inner.update(part, state.inner._replace(lr=state.lr), batch, noise, generator)
        step = state.step + 1
        # A rate of 0 leaves every bit as it is. Nothing is read on the host.
        moves = (state.step < state.resting).to(state.lr)
        share = state.lr / self.inner.lr if self.inner.lr else torch.ones_like(state.lr)
        others, moments = adam_step(
            state.others, part.gradient_of_others(), target.prior, state.moments, step, share * self.map_lr * moves,
            self.betas,
        )  # fmt: skip
        return state._replace(inner=inner, others=others, moments=moments, step=step), info

    def collects(self, target: Target, step: int) -> bool:
        """See the base class."""
        return self.inner.collects(target, step)

    def collect(self, target: Target, state: PartlyRandomState) -> PartlyRandomState:
        """See the base class."""
        return state._replace(inner=self.inner.collect(given(target, state.others), state.inner))

    def refresh(self, target: Target, state: PartlyRandomState) -> PartlyRandomState:
        """See the base class."""
        return state._replace(inner=self.inner.refresh(given(target, state.others), state.inner))

    def mean_params(self, state: PartlyRandomState) -> dict[str, Tensor]:
        """See the base class: those of the algorithm, and the others as they are."""
        return {**state.others, **self.inner.mean_params(state.inner)}

    def finalize(self, target: Target, state: PartlyRandomState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the algorithm's posterior, with the others as constants."""
        # Copies: a recorded step goes on using the memory of its state.
        others = {name: p.clone() for name, p in state.others.items()}
        return self.inner.finalize(given(target, others), state.inner, sweep, generator)

    def describe(self) -> dict[str, Any]:
        """Return the description of the algorithm."""
        return self.inner.describe()


def given(whole: Target, others: dict[str, Tensor]) -> Target:
    """Return the target of the random parameters alone, with the others as constants."""
    precision, l1 = (_without(others, entries) for entries in (whole.precision, whole.l1))
    return replace(whole, buffers={**whole.buffers, **others}, precision=precision, l1=l1)


@dataclass(frozen=True)
class PartTarget(Target):
    """What ``given`` returns, for one step: the gradients that it asks for are taken with respect to the others too.

    Those of the others are kept aside.

    Attributes:
        whole: the target of all parameters.
        others: by name.
        aside: gradients of the mean loss with respect to the others, one for each that was asked for.
    """

    whole: Target | None = None
    others: dict[str, Tensor] = field(default_factory=dict)
    aside: list[dict[str, Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, whole: Target, others: dict[str, Tensor]) -> PartTarget:
        """Make the target of one step."""
        part = given(whole, others)
        same = {entry.name: getattr(part, entry.name) for entry in fields(Target)}
        return cls(**same, whole=whole, others=others)

    @cached_property
    def prior(self) -> dict[str, Tensor]:
        """See the base class."""
        assert self.whole is not None
        # Divided once, and not in every step.
        return {name: self.whole.prior[name] for name in self.precision}

    def mean_loss_and_gradient(self, params: Params, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """See the base class; regularizers and clipping are those of all parameters together."""
        assert self.whole is not None
        loss, gradient = self.whole.mean_loss_and_gradient({**self.others, **params}, batch, noise)
        return loss, self._put_aside(gradient)

    def mean_loss_and_slopes(
        self, params: Params, batch: Batch, noise: Noise
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """See the base class."""
        assert self.whole is not None
        loss, gradient, magnitudes = self.whole.mean_loss_and_slopes({**self.others, **params}, batch, noise)
        return loss, self._put_aside(gradient), _without(self.others, magnitudes)

    def gradients(self, params: Params, batch: Batch, noise: Noise) -> Gradients:
        """See the base class. Squares are found for the random parameters alone, where they are needed."""
        found = self.likelihood_gradients(params, batch, noise)
        _, gradient = self.mean_loss_and_gradient(params, batch, noise)
        return found._replace(gradient={name: g * -len(batch.inputs) for name, g in gradient.items()})

    def _put_aside(self, gradient: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keep the part of a gradient that belongs to the others, and return the rest."""
        self.aside.append({name: gradient[name] for name in self.others})
        return _without(self.others, gradient)

    def gradient_of_others(self) -> dict[str, Tensor]:
        """Return the gradient of the mean loss with respect to the others, at the mean over the step's samples."""
        if not self.aside:
            raise InvalidInput(
                "a step of this algorithm asks the target neither for mean_loss_and_gradient nor for gradients, so "
                "the parameters that are not random cannot be trained along with it. Freeze them: "
                "requires_grad_(False)."
            )
        if len(self.aside) == 1:
            return self.aside[0]
        return {name: torch.stack([each[name] for each in self.aside]).mean(0) for name in self.others}


def _without(others: Params, entries: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of parameters that are not among the others."""
    return {name: entry for name, entry in entries.items() if name not in others}
