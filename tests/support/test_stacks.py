"""Stacked samples: a dictionary whose tensors have a leading dimension."""

import torch

from certibayes.support.stacks import add_product, count, map_samples, map_trees, pick, stack


def test_stack_and_pick_are_inverse():
    samples = [{"a": torch.full((2,), float(i)), "b": torch.full((), float(-i))} for i in range(3)]
    stacked = stack(samples)
    assert count(stacked) == 3
    for index, sample in enumerate(samples):
        assert all(torch.equal(pick(stacked, index)[key], sample[key]) for key in sample)


def test_map_samples_is_a_loop():
    stacked = {"w": torch.arange(12.0).view(3, 4)}
    assert torch.equal(map_samples(lambda p: p["w"].sum()[None], stacked), stacked["w"].sum(1, keepdim=True))


def test_map_samples_keeps_tuples_and_dictionaries():
    stacked = {"w": torch.arange(6.0).view(3, 2)}
    one, rest = map_samples(lambda p: (p["w"], {"sum": p["w"].sum()}), stacked)
    assert torch.equal(one, stacked["w"])
    assert torch.equal(rest["sum"], stacked["w"].sum(1))


def test_trees_hold_what_is_the_same_for_all():
    stacked = {"w": torch.arange(6.0).view(3, 2), "none": None}
    found = map_trees(
        lambda tree, other: (tree["none"], {"sum": tree["w"].sum() + other[0]}, 0.5), stacked, (torch.ones(3),)
    )
    assert found[0] is None and found[2] == 0.5
    assert torch.equal(found[1]["sum"], stacked["w"].sum(1) + 1)


def test_add_product_overwrites_its_first_argument_and_also_runs_in_vmap(recwarn):
    total, one, other = torch.arange(24.0).view(3, 2, 4).unbind()
    expected = total + 0.5 * one * other
    many = torch.vmap(lambda t, a, b: add_product(t, a, b, 0.5))(total.clone(), one, other)
    found = add_product(total, one, other, 0.5)
    assert found is total
    assert torch.equal(found, expected)
    assert torch.equal(many, expected)
    # Torch warns where vmap has no rule and makes a loop.
    assert not [str(warning.message) for warning in recwarn if "performance" in str(warning.message)]
