"""Batch norm by statistics of the clean batch: the same for every pass of a likelihood, and with gradient."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import ideal_box, interval_bounds, point_and_box
from certibayes.likelihoods import CROWNIBP, Batch
from certibayes.networks.batch_norm import BATCH, CONSTANT, clean_pass, training_graph

from .cases import Case, case_of, full_noise, images, labels

LIKELIHOODS = {
    "standard": cb.Categorical(),
    "ibp": cb.RobustCategorical(cb.TwoPoint(0.05)),
    "ibp, no clean term": cb.RobustCategorical(cb.TwoPoint(0.05, lam=0.0)),
    "ibp, no radius": cb.RobustCategorical(cb.TwoPoint(0.05, lam=1.0)),
    "ibp, smoothed": cb.RobustCategorical(cb.TwoPoint(0.05), cb.IBP(smoothing=0.01)),
    "margins": cb.RobustCategorical(cb.TwoPoint(0.05), cb.IBP(margins=True)),
    "margins, no clean term": cb.RobustCategorical(cb.TwoPoint(0.05, lam=0.0), cb.IBP(margins=True)),
    "crown-ibp": cb.RobustCategorical(cb.TwoPoint(0.05), CROWNIBP()),
    "crown-ibp, mixed": cb.RobustCategorical(cb.TwoPoint(0.05), CROWNIBP(beta=0.5)),
    "pgd": cb.RobustCategorical(cb.TwoPoint(0.05), cb.PGD(steps=3)),
    "pgd, no clean term": cb.RobustCategorical(cb.TwoPoint(0.05, lam=0.0), cb.PGD(steps=3)),
    "rayleigh": cb.RobustCategorical(cb.Rayleigh(0.05, draws=3)),
    "regression": cb.RobustGaussian(0.5, cb.TwoPoint(0.05), domain=(0.0, 1.0)),
    "regression, crown-ibp": cb.RobustGaussian(0.5, cb.TwoPoint(0.05), CROWNIBP(), domain=(0.0, 1.0)),
}


class Residual(nn.Module):
    """A batch norm on vectors, one on images, a residual sum, and one without weights."""

    def __init__(self):
        super().__init__()
        self.first, self.one = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.second, self.two = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, affine=False)
        self.third, self.three, self.last = nn.Linear(48, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x):
        hidden = torch.relu(self.one(self.first(x)))
        hidden = torch.relu(self.two(self.second(hidden)) + hidden)
        return self.last(torch.relu(self.three(self.third(hidden.flatten(1)))))


def case(name: str = "standard") -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Residual().double()
        for norm in (net.one, net.three):
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x = images(6, 1, 4, 4)
    targets = images(6, 3, seed=1) if name.startswith("regression") else labels(6)
    return case_of(net, x, targets)


def with_batch_statistics(case: Case) -> dict[str, torch.Tensor]:
    """All tensors of the network as it is, with the statistics of its clean batch as constants."""
    marked = training_graph(case.graph)
    found = clean_pass(marked, case.tensors, case.batch.inputs).params
    constants = {
        own.roles[constant]: found[node.roles[batch]]
        for node, own in zip(marked.nodes, case.graph.nodes, strict=True)
        if BATCH[0] in node.roles
        for constant, batch in zip(CONSTANT, BATCH, strict=True)
    }
    assert len(constants) == 6
    return {**case.tensors, **constants}


@pytest.mark.parametrize("name", LIKELIHOODS)
class TestEveryLikelihood:
    def test_all_passes_have_the_statistics_of_the_clean_batch(self, name):
        likelihood, given = LIKELIHOODS[name], case(name)
        noise = full_noise(likelihood, given.batch)
        found = likelihood.log_likelihood(training_graph(given.graph), given.tensors, given.batch, noise)
        expected = likelihood.log_likelihood(given.graph, with_batch_statistics(given), given.batch, noise)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        constant = likelihood.log_likelihood(given.graph, given.tensors, given.batch, noise)
        assert float((found - constant).abs().max()) > 1e-3

    def test_the_gradient_goes_through_the_statistics(self, name):
        """Central differences of the batch's log-likelihood, along random directions."""
        likelihood, given = LIKELIHOODS[name], case(name)
        noise, marked = full_noise(likelihood, given.batch), training_graph(given.graph)

        def total(params):
            return likelihood.log_likelihood(marked, {**given.buffers, **params}, given.batch, noise).sum()

        gradient = torch.func.grad(total)(given.params)
        generator, step = torch.Generator().manual_seed(0), 1e-7
        for _ in range(3):
            way = {k: torch.randn(p.shape, generator=generator, dtype=p.dtype) for k, p in given.params.items()}
            ends = [total({k: p + side * way[k] for k, p in given.params.items()}) for side in (step, -step)]
            slope = sum((gradient[k] * w).sum() for k, w in way.items())
            torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-5)
        if name == "ibp, smoothed":
            return  # sqrt(w² + τ²) does not scale with w
        # The scale of weights before a batch norm changes nothing, which constants would not know.
        weight, slopes = given.params["third.weight"], gradient["third.weight"]
        assert abs(float((weight * slopes).sum())) < 1e-3 * float(slopes.norm())

    def test_members_of_an_ensemble_at_once(self, name):
        likelihood, given = LIKELIHOODS[name], case(name)
        noise, marked = full_noise(likelihood, given.batch), training_graph(given.graph)

        def total(params):
            return likelihood.log_likelihood(marked, {**given.buffers, **params}, given.batch, noise).sum()

        members = [{key: p * (1 + 0.1 * i) for key, p in given.params.items()} for i in range(3)]
        stacked = {key: torch.stack([member[key] for member in members]) for key in given.params}
        found = torch.vmap(torch.func.grad(total))(stacked)
        for i, member in enumerate(members):
            for key, expected in torch.func.grad(total)(member).items():
                torch.testing.assert_close(found[key][i], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("eps", [0.0, 0.01, 0.3])
def test_no_input_leaves_the_bounds_under_the_same_statistics(eps):
    given = case()
    marked, x = training_graph(given.graph), given.batch.inputs
    clean, params = clean_pass(marked, given.tensors, x)
    point, box = point_and_box(marked, given.tensors, x, ideal_box(x, eps))
    torch.testing.assert_close(point, clean, rtol=1e-10, atol=1e-10)
    apart = interval_bounds(marked, params, ideal_box(x, eps))
    torch.testing.assert_close(box.lower, apart.lower, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(box.upper, apart.upper, rtol=1e-10, atol=1e-10)
    generator = torch.Generator().manual_seed(0)
    for trial in range(50):
        noise = 2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1
        outputs = marked.evaluate(params, x + eps * (noise.sign() if trial % 2 else noise))
        assert bool((outputs >= box.lower - 1e-9).all() and (outputs <= box.upper + 1e-9).all())


def test_no_attack_is_worse_than_the_bound():
    """Both under the statistics of the same clean batch."""
    given = case()
    marked, p_eps = training_graph(given.graph), cb.TwoPoint(0.05)
    values = []
    for adversary in (cb.IBP(), cb.IBP(margins=True), CROWNIBP(), cb.PGD(steps=20)):
        likelihood = cb.RobustCategorical(p_eps, adversary)
        noise = full_noise(likelihood, given.batch)
        values.append(likelihood.log_likelihood(marked, given.tensors, given.batch, noise))
    for bound in values[:3]:
        assert bool((bound <= values[3] + 1e-9).all())


def test_an_example_has_no_likelihood_by_itself():
    """What mode ``batch`` does to the meaning of a likelihood: it is that of a batch."""
    given, likelihood = case(), cb.Categorical()
    marked, noise = training_graph(given.graph), full_noise(cb.Categorical(), case().batch)
    whole = likelihood.log_likelihood(marked, given.tensors, given.batch, noise)
    half = Batch(*(part[:3] for part in given.batch))
    assert not torch.allclose(likelihood.log_likelihood(marked, given.tensors, half, noise), whole[:3], atol=1e-3)
    same = likelihood.log_likelihood(given.graph, given.tensors, half, noise)
    torch.testing.assert_close(
        same, likelihood.log_likelihood(given.graph, given.tensors, given.batch, noise)[:3], rtol=1e-10, atol=1e-10
    )
