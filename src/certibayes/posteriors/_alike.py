"""Posteriors that are to be put together must be of one network, for one kind of data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.posteriors.posterior import Posterior
from certibayes.regions import domain_to_json


def require_alike(posteriors: Sequence[Any], call: str, of_list: str) -> None:
    """Raise unless all are posteriors, of one architecture, task and domain.

    Args:
        posteriors: what was given.
        call: how it should be, for errors.
        of_list: how it should be with a list of posteriors.
    """
    if not posteriors:
        raise InvalidInput(f"at least one posterior is needed: {call}.")
    for number, posterior in enumerate(posteriors):
        if not isinstance(posterior, Posterior):
            raise InvalidInput(
                f"posteriors are needed, one after another: {call}; argument {number} is a "
                f"{type(posterior).__name__}. A list of them takes a star: {of_list}."
            )
        first = posteriors[0]
        differs = {
            "architecture": posterior.graph != first.graph,
            "task": posterior.task != first.task,
            "domain": domain_to_json(posterior.domain) != domain_to_json(first.domain),
        }
        if any(differs.values()):
            raise InvalidInput(
                f"posteriors 0 and {number} differ in {' and '.join(what for what in differs if differs[what])}, so no "
                "one predictor has samples of both. Join posteriors of one network, for one kind of data."
            )
