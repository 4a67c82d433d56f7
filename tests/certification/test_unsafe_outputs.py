"""Conjunctions of linear constraints, against loops over the definition."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.certification import UnsafeOutputs

from ..strategies import generator, law, seeds


def random_unsafe(owners: list[int], conjunctions: int, seed: int) -> UnsafeOutputs:
    draw = generator(seed)
    return UnsafeOutputs(
        torch.randn(len(owners), 3, generator=draw),
        torch.randn(len(owners), generator=draw, dtype=torch.float64),
        torch.tensor(owners, dtype=torch.int64),
        conjunctions,
    )


@law(50)
@given(
    owners=st.lists(st.integers(0, 3), max_size=7), chosen=st.lists(st.booleans(), min_size=4, max_size=4), seed=seeds
)
def test_constraints_belong_to_their_conjunctions(owners, chosen, seed):
    unsafe = random_unsafe(owners, 4, seed)
    lower = torch.randn(5, len(owners), generator=generator(seed + 1), dtype=torch.float64)
    outputs = torch.randn(5, 3, generator=generator(seed + 2), dtype=torch.float64)
    excluded, margins = unsafe.excluded(lower), unsafe.margins(outputs)
    for point in range(5):
        for conjunction in range(4):
            rows = [row for row, owner in enumerate(owners) if owner == conjunction]
            assert bool(excluded[point, conjunction]) == any(lower[point, r] > unsafe.bounds[r] for r in rows)
            values = [float(unsafe.coefficients[r].double() @ outputs[point] - unsafe.bounds[r]) for r in rows]
            assert abs(float(margins[point, conjunction]) - max(values)) < 1e-9 if rows else True
            assert rows or margins[point, conjunction] == -torch.inf
    mask = torch.tensor(chosen)
    part = unsafe.take(mask)
    kept = mask[unsafe.conjunction]
    assert part.conjunctions == sum(chosen)
    assert torch.equal(part.excluded(lower[:, kept]), excluded[:, mask])
    # Products of other sizes may add in another order.
    torch.testing.assert_close(part.margins(outputs), margins[:, mask], rtol=0, atol=1e-12)


def test_a_bound_that_is_equal_does_not_exclude():
    unsafe = UnsafeOutputs(torch.ones(1, 1), torch.tensor([0.5], dtype=torch.float64), torch.tensor([0]), 1)
    above = torch.nextafter(torch.tensor(0.5, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    assert unsafe.excluded(torch.stack([torch.tensor(0.5, dtype=torch.float64), above])[:, None]).tolist() == [[0], [1]]
