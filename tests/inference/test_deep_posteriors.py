"""Posteriors of convolutional networks with batch norm: certified with 10 and 35 samples, also after the disk."""

from functools import cache

import pytest
import torch
from torch.nn.functional import avg_pool2d

import certibayes as cb
from certibayes.networks.batch_norm import statistics_of
from certibayes.support.stacks import count, pick

from ..strategies import in_turn

ALGORITHMS = {
    "swag": cb.SWAG(lr=0.01, start=0.3, rank=3, every=1),
    "swag on Adam": cb.SWAG(lr=0.003, start=0.3, rank=3, every=1, optimizer="adam"),
    "swag, diagonal": cb.SWAG(lr=0.003, start=0.3, rank=0, every=1, optimizer="adam"),
    "ivon": cb.IVON(lr=1.0, initial_std=0.003),
    "laplace": cb.Laplace(structure="last-layer"),
    "ensemble": cb.DeepEnsemble(members=3),
    "snapshot": cb.SnapshotEnsemble(members=3, start=0.4),
}
SHARED = ("laplace",)
"""Whose random weights come after every batch norm."""


@cache
def training_data():
    """A few digits of 14 x 14 pixels."""
    x, y = (part[:64] for part in cb.data.load("digits").train)
    return avg_pool2d(x, 2), y


@cache
def fitted(name, network=cb.networks.cnn5):
    likelihood = cb.RobustCategorical(eps=0.02, adversary=cb.IBP(margins=True), domain=(0.0, 1.0))
    return cb.fit(
        network((1, 14, 14), channels=2),
        training_data(),
        algorithm=ALGORITHMS[name],
        likelihood=likelihood,
        epochs=5,
        # So few digits say little: at 1 a random last layer proves nothing.
        temperature=0.01 if name in SHARED else None,
        batch_size=16,
        clip=10.0,
        progress=False,
    )


def joined(seeds):
    """MultiSWAG, of the same run again and again: what counts here is how it is stored."""
    return cb.Samples.join(*[fitted("swag on Adam")] * seeds, each=12)


CASES = {**{name: lambda name=name: fitted(name) for name in ALGORITHMS}, "three swags": lambda: joined(3)}
CASES["laplace on cnn7"] = lambda: fitted("laplace", cb.networks.cnn7)


@pytest.mark.parametrize(("name", "samples"), in_turn(CASES, [10, 35]))
def test_it_is_stored_and_certified(name, samples, tmp_path):
    posterior = CASES[name]()
    number = samples if posterior.held is None else min(samples, posterior.held)
    predictor = posterior.predictor(number, seed=0)
    posterior.save(tmp_path)
    again = cb.load(tmp_path).predictor(number, seed=0)
    assert again.digest == predictor.digest and again.size == number
    x = training_data()[0][:3]
    result = cb.certify(again, x, eps=1e-4, method=cb.Elided(bounds="ibp"))
    assert bool(result.certified.any())
    attacked = cb.attack(again, x, again.predict(x), eps=1e-4, method="fgsm")
    assert not bool((attacked.success & result.certified).any())
    probabilities = again.probabilities(attacked.inputs).double()
    assert bool((result.lower <= probabilities).all() and (probabilities <= result.upper).all())


def test_ivon_learns_with_small_standard_deviations():
    """As the documentation recommends for networks with batch norm: first steps of rate 0.5, and widths that stay."""
    x, y = training_data()
    algorithm = cb.IVON(lr=0.5 / (len(x) * 0.01**2), initial_std=0.01)
    net = cb.networks.cnn5((1, 14, 14), channels=2)
    posterior = cb.fit(net, (x, y), algorithm=algorithm, epochs=20, batch_size=16, progress=False)
    losses = [record["loss"] for record in posterior.metadata["history"]]
    assert losses[-1] < 0.5 * losses[0]
    assert float((posterior.predictor(10).predict(x) == y).float().mean()) > 0.8
    widths = torch.cat([std.flatten() for std in posterior.std.values()])
    assert 0.005 < float(widths.median()) < 0.02


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_sample_has_the_statistics_of_its_own_weights(name):
    posterior = fitted(name)
    assert posterior.metadata["batch_norm"] == "batch"
    assert posterior.statistics_vary == (posterior.held is None and name not in SHARED)
    samples = posterior.predictor(min(4, posterior.held or 4)).samples
    for i in range(count(samples)):
        one = pick(samples, i)
        for key, value in statistics_of(posterior.graph, one, training_data()[0]).items():
            torch.testing.assert_close(one[key], value, rtol=2.0**-12, atol=2.0**-12)
