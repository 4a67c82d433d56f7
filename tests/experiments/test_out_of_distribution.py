"""Out-of-distribution inputs: of the same shape, inside the domain, always the same; an error where there are none."""

import pytest
import torch

from certibayes import data
from certibayes.data import DataSet
from certibayes.data.dataset import Split
from certibayes.errors import InvalidInput, MissingData
from certibayes.experiments import out_of_distribution
from certibayes.experiments.out_of_distribution import MADE, load_out_of_distribution, usual_out_of_distribution


def toy_set(name="toy", size=6, domain=(0.0, 1.0)):
    x = torch.rand(size, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(size, dtype=torch.long)
    return DataSet(name, Split(x, y), Split(x, y), ("a", "b"), domain)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("domain", [(0.0, 1.0), (-0.3, 1.7)])
def test_made_inputs_have_the_shape_and_stay_in_the_domain(name, domain):
    known = toy_set(domain=domain)
    found = load_out_of_distribution(name, known)
    assert found.shape == known.test.inputs.shape and found.dtype == torch.float32
    assert float(found.min()) >= domain[0] and float(found.max()) <= domain[1]
    assert not torch.equal(found, known.test.inputs)
    assert torch.equal(found, load_out_of_distribution(name, known))
    assert len(load_out_of_distribution(name, known, limit=2)) == 2


def test_what_each_of_them_does():
    x = toy_set().test.inputs
    torch.testing.assert_close(load_out_of_distribution("inverted", toy_set()), 1 - x)
    shuffled = load_out_of_distribution("shuffled", toy_set())
    assert torch.equal(shuffled.flatten(1).sort(1).values, x.flatten(1).sort(1).values)
    # One permutation for all: equal pictures stay equal, and pixels move alike.
    moved = [int((shuffled[:, 0, 0, 0] == x.flatten(1)[:, k]).all()) for k in range(16)]
    assert sum(moved) == 1


def test_another_data_set_brings_its_test_images(monkeypatch):
    other = toy_set("mnist", size=9)
    monkeypatch.setattr(out_of_distribution.data, "load", lambda name, data_dir: other)
    assert torch.equal(load_out_of_distribution("mnist", toy_set(), limit=4), other.test.inputs[:4])


def test_what_cannot_be_out_of_distribution_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="shuffled"):
        load_out_of_distribution("martian", toy_set())
    with pytest.raises(InvalidInput, match="itself"):
        load_out_of_distribution("digits", toy_set("digits"))
    with pytest.raises(InvalidInput, match=r"\(1, 28, 28\).*\(1, 4, 4\)"):
        load_out_of_distribution("digits", toy_set())
    with pytest.raises(InvalidInput, match="regression"):
        load_out_of_distribution("shuffled", data.load("diabetes"))
    with pytest.raises(MissingData, match="data get svhn"):
        load_out_of_distribution("svhn", toy_set(), tmp_path)


def test_the_paper_s_pairs_are_the_usual_ones():
    assert (usual_out_of_distribution("mnist"), usual_out_of_distribution("cifar10")) == ("fashion-mnist", "svhn")
    assert usual_out_of_distribution("digits") in MADE and usual_out_of_distribution("whatever") in MADE
