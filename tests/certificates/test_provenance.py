"""A digest that takes long is computed when it is asked for."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch

from certibayes.certificates import Provenance
from certibayes.certification._origin import _when_asked
from certibayes.support.files import tensor_digest

DIGEST = "a" * 64


@pytest.fixture
def calls():
    return []


@pytest.fixture
def provenance(calls):
    def digest() -> str:
        calls.append(1)
        return DIGEST

    return Provenance(digest="b" * 64, inputs_digest=digest, samples=1, device="cpu", dtype="float32")


def test_a_digest_is_computed_once_and_not_before_it_is_asked_for(provenance, calls):
    assert not calls
    assert provenance.inputs_digest == DIGEST and provenance.to_json()["inputs_digest"] == DIGEST
    assert DIGEST[:12] in repr(provenance)
    assert len(calls) == 1


def test_another_digest_takes_its_place_without_computing_it(provenance, calls):
    assert replace(provenance, inputs_digest="c" * 64).inputs_digest == "c" * 64 and not calls


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_are_equal_and_hold_the_digest(provenance, calls, again):
    other = again(provenance)
    assert other == provenance and other.inputs_digest == DIGEST and len(calls) == 1


def test_it_equals_a_provenance_that_knew_its_digest(provenance):
    known = Provenance(digest="b" * 64, inputs_digest=DIGEST, samples=1, device="cpu", dtype="float32")
    assert provenance == known and provenance != replace(known, inputs_digest="c" * 64)


def test_a_digest_is_needed():
    with pytest.raises(TypeError, match="inputs_digest"):
        Provenance(digest="b" * 64, samples=1, device="cpu", dtype="float32")


def test_it_is_the_digest_of_the_points_as_they_were():
    x = torch.rand(3, 4)
    expected, later = tensor_digest({"inputs": x}), _when_asked(x)
    x.zero_()
    assert later() == expected
