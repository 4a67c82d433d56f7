"""The zoo of networks holds every operation that has rules, so no rule escapes the laws."""

import torch

from certibayes.bounds import registered
from certibayes.networks import operations, trace

from ..strategies import VARIANTS, ZOO, graph_and_params, make, traced


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(operations.__name__)


def test_every_registered_operation_is_in_the_zoo():
    """Also in what ``make test`` takes of it."""
    assert ZOO.keys() >= VARIANTS
    found = {type(node.operation) for name in ZOO.keys() - VARIANTS for node in traced(name)[0].nodes}
    shipped = {kind for kind in registered() if _is_ours(kind)}
    assert shipped <= found, f"add a network to the zoo for {[kind.__name__ for kind in shipped - found]}"


def test_every_operation_has_rules():
    shipped = {kind for kind in operations.Operation.known.values() if _is_ours(kind)}
    assert shipped == {kind for kind in registered() if _is_ours(kind)}


def test_seeds_change_weights_alone():
    """One trace of a network serves every seed in ``traced``."""
    for name in ZOO:
        for dtype in (torch.float32, torch.float64):
            expected_graph, expected = graph_and_params(trace(make(name, 7, dtype)))
            graph, params = traced(name, 7, dtype)
            assert graph == expected_graph, name
            assert list(params) == list(expected), name
            assert all(torch.equal(params[key], value) for key, value in expected.items()), name
