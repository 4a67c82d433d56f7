"""The zoo of networks holds every operation that has rules, so no rule escapes the laws."""

from certibayes.bounds import registered
from certibayes.networks import operations

from ..strategies import ZOO, traced


def test_every_registered_operation_is_in_the_zoo():
    found = {type(node.operation) for name in ZOO for node in traced(name)[0].nodes}
    shipped = {kind for kind in registered() if kind.__module__ == operations.__name__}
    assert shipped <= found, f"add a network to the zoo for {[kind.__name__ for kind in shipped - found]}"


def test_every_operation_has_rules():
    shipped = {kind for kind in operations.Operation.known.values() if kind.__module__ == operations.__name__}
    assert shipped == {kind for kind in registered() if kind.__module__ == operations.__name__}
