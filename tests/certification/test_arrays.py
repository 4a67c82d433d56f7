"""Arrays of numpy as points, labels and targets give what tensors give."""

import numpy as np
import torch
from torch import nn

import certibayes as cb
from certibayes.certification import certify_in_shards

X = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
BALL = {"eps": 0.1, "domain": (0.0, 1.0)}


def _net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Linear(3, 3)


PREDICTOR = cb.Point(_net()).predictor()
Y = PREDICTOR.predict(X)
PARAMS = {name: value.detach() for name, value in _net().named_parameters()}
POSTERIOR = cb.DiagonalGaussian(_net(), PARAMS, {name: value.abs() / 10 for name, value in PARAMS.items()})


def test_arrays_and_lists_are_taken_everywhere(tmp_path):
    regressor = cb.Point(_net(), metadata={"task": "regression"}).predictor()
    targets = torch.zeros(5, 3)
    found = []
    for kind, convert in (("tensors", lambda t: t), ("arrays", lambda t: t.numpy())):
        x, y = convert(X), convert(Y)
        found.append(
            [
                cb.certify(PREDICTOR, x, y, **BALL),
                certify_in_shards(PREDICTOR, x, y, str(tmp_path / kind), shard=2, **BALL),
                cb.certified_radius(PREDICTOR, x, y, tolerance=0.1),
                cb.certify_regression(regressor, x, convert(targets), **BALL),
                cb.robust_probability(POSTERIOR, x, y, samples=3, **BALL),
                cb.posterior_predictive_bounds(POSTERIOR, x, y, samples=3, **BALL),
            ]
        )
        assert cb.check_certificate(found[-1][0], PREDICTOR, x).holds
    for of_tensors, of_arrays in zip(*found, strict=True):
        assert of_tensors.to_json() == of_arrays.to_json()


def test_radii_in_arrays_are_written_by_statistical_certificates():
    found = cb.robust_probability(POSTERIOR, X, Y, eps=np.full(5, 0.1), samples=3, domain=np.array([0.0, 1.0]))
    record = found.to_json()["trial"]
    assert record["eps"] == [0.1] * 5 and record["domain"] == [0.0, 1.0]
