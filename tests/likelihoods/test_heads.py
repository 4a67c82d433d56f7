"""Heads against formulas written out with Python floats, and likelihoods as passes followed by a head."""

import math

import pytest
import torch

import certibayes as cb
from certibayes.likelihoods import Batch, Likelihood, Outputs

from .cases import CLASSES, case_of, full_noise, images, mlp_case

SIZE = 5
NOTHING = torch.empty(0, dtype=torch.float64)


def outputs(seed, scale=1.0):
    return scale * torch.randn(SIZE, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels():
    return torch.arange(SIZE) % CLASSES


def softmax(logits, label):
    return math.exp(logits[label]) / sum(math.exp(z) for z in logits)


def log_mixture(weighted, targets):
    """log of the sum of weight * softmax_y, for weighted = [(weight, logits), ...]."""
    return torch.tensor(
        [
            math.log(sum(weight * softmax(logits[b].tolist(), y) for weight, logits in weighted))
            for b, y in enumerate(targets.tolist())
        ],
        dtype=torch.float64,
    )


def gaussian(weighted, targets, std):
    """Remark 1 of the paper, for weighted = [(weight, lower, upper), ...]."""
    values = []
    for b in range(SIZE):
        value = 0.0
        for k in range(CLASSES):
            y = float(targets[b, k])
            low = sum(weight * float(lower[b, k]) for weight, lower, _ in weighted)
            high = sum(weight * float(upper[b, k]) for weight, _, upper in weighted)
            residual = max(abs(high - y), abs(low - y))
            value += math.log(math.exp(-0.5 * (residual / std) ** 2) / (std * math.sqrt(2 * math.pi)))
        values.append(value)
    return torch.tensor(values, dtype=torch.float64)


def same(found, expected):
    assert found.shape == (SIZE,)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def log_weights_of(lam):
    """Of radius 0 and of another, where they have any probability."""
    return torch.tensor([weight for weight in (lam, 1 - lam) if weight > 0], dtype=torch.float64).log()


def test_the_standard_head():
    clean = outputs(0)
    same(cb.Categorical().log_p(clean, (), labels(), NOTHING), log_mixture([(1.0, clean)], labels()))


@pytest.mark.parametrize("lam", [0.0, 0.25, 0.9])
def test_the_robust_head_mixes_probabilities_at_two_points(lam):
    clean, worst = outputs(0), outputs(1)
    found = cb.RobustCategorical(cb.TwoPoint(0.1, lam)).log_p(
        clean if lam > 0 else None, [worst], labels(), log_weights_of(lam)
    )
    same(found, log_mixture([(lam, clean), (1 - lam, worst)], labels()))


def test_the_robust_head_mixes_probabilities_of_many_radii():
    weights = [0.1, 0.2, 0.7]
    worst = [outputs(seed) for seed in (1, 2, 3)]
    log_weights = torch.tensor(weights, dtype=torch.float64).log()
    found = cb.RobustCategorical(cb.Rayleigh(0.1, quadrature=3)).log_p(None, worst, labels(), log_weights)
    same(found, log_mixture(list(zip(weights, worst, strict=True)), labels()))


def test_the_robust_head_without_a_radius_is_the_standard_one():
    clean = outputs(0)
    for p_eps in (cb.TwoPoint(0.0), cb.TwoPoint(0.1, lam=1.0)):
        found = cb.RobustCategorical(p_eps).log_p(clean, [], labels(), log_weights_of(1.0))
        assert torch.equal(found, cb.Categorical().log_p(clean, (), labels(), NOTHING))


def test_a_head_withstands_logits_whose_softmax_underflows():
    clean, worst = outputs(0, 1e4), outputs(1, 1e4)
    found = cb.RobustCategorical(cb.TwoPoint(0.1, 0.25)).log_p(clean, [worst], labels(), log_weights_of(0.25))
    terms = [torch.log_softmax(z, -1)[torch.arange(SIZE), labels()] for z in (clean, worst)]
    assert torch.isfinite(found).all()
    same(found, torch.logaddexp(terms[0] + math.log(0.25), terms[1] + math.log(0.75)))


@pytest.mark.parametrize("std", [0.5, 2.0])
@pytest.mark.parametrize("lam", [0.0, 0.25])
def test_the_gaussian_head_averages_extremes(lam, std):
    clean, center, radius, targets = outputs(0), outputs(1), outputs(2).abs(), outputs(3)
    lower, upper = center - radius, center + radius
    found = cb.RobustGaussian(std, cb.TwoPoint(0.1, lam)).log_p(
        clean if lam > 0 else None, [(lower, upper)], targets, log_weights_of(lam)
    )
    same(found, gaussian([(lam, clean, clean), (1 - lam, lower, upper)], targets, std))


def test_the_gaussian_head_of_many_radii():
    weights = [0.3, 0.7]
    extremes = [(outputs(seed) - 1, outputs(seed) + 1) for seed in (1, 2)]
    targets = outputs(3)
    found = cb.RobustGaussian(0.5, cb.Exponential(0.1, quadrature=2)).log_p(
        None, extremes, targets, torch.tensor(weights, dtype=torch.float64).log()
    )
    weighted = [(weight, low, high) for weight, (low, high) in zip(weights, extremes, strict=True)]
    same(found, gaussian(weighted, targets, 0.5))


CLASSIFICATION = {
    "standard": cb.Categorical(),
    "ibp": cb.RobustCategorical(eps=0.1),
    "worst case only": cb.RobustCategorical(cb.TwoPoint(0.1, 0.0)),
    "margins": cb.RobustCategorical(eps=0.1, adversary=cb.IBP(margins=True)),
    "crown-ibp": cb.RobustCategorical(eps=0.1, adversary=cb.CROWNIBP()),
    "pgd": cb.RobustCategorical(eps=0.1, adversary=cb.PGD(steps=2)),
    "rayleigh": cb.RobustCategorical(cb.Rayleigh(0.1, draws=3)),
    "sabr": cb.RobustCategorical(eps=0.1, adversary=cb.SABR()),
    "sabr without margins": cb.RobustCategorical(eps=0.1, adversary=cb.SABR(bound=cb.IBP())),
    "cc-ibp": cb.RobustCategorical(eps=0.1, adversary=cb.CCIBP()),
    "mtl-ibp": cb.RobustCategorical(eps=0.1, adversary=cb.MTLIBP()),
    "mtl-ibp, worst case only": cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), cb.MTLIBP()),
    "exp-ibp, many radii": cb.RobustCategorical(cb.Rayleigh(0.1, draws=3), cb.ExpIBP()),
}
REGRESSION = {
    "standard": cb.RobustGaussian(),
    "ibp": cb.RobustGaussian(0.5, eps=0.1),
    "pgd": cb.RobustGaussian(0.5, eps=0.1, adversary=cb.PGD(steps=2)),
}


def regression_case():
    return case_of(cb.networks.mlp(6, [7], 2), images(SIZE, 6), images(SIZE, 2, seed=4))


@pytest.mark.parametrize(
    ("likelihood", "make"),
    [(each, mlp_case) for each in CLASSIFICATION.values()] + [(each, regression_case) for each in REGRESSION.values()],
    ids=[*CLASSIFICATION, *(f"regression-{name}" for name in REGRESSION)],
)
def test_a_likelihood_is_its_passes_and_its_head(likelihood, make):
    case = make()
    noise = full_noise(likelihood, case.batch)
    found = likelihood.passes(case.graph, case.tensors, case.batch, noise)
    assert len(found.worst) == len(noise.radii)
    values = likelihood.log_p(found.clean, found.worst, case.batch.targets, noise.log_weights)
    assert torch.equal(values, case.log_likelihood(likelihood, noise))


def test_no_clean_pass_is_made_that_is_not_needed():
    case = mlp_case()
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, lam=0.0))
    noise = full_noise(likelihood, case.batch)
    assert likelihood.passes(case.graph, case.tensors, case.batch, noise).clean is None


class Laplacian(Likelihood):
    """A likelihood of one's own: no more than a head."""

    def log_p(self, clean, worst, targets, log_weights):
        return (-(clean - targets).abs() - math.log(2)).sum(-1)


def test_a_head_is_all_that_a_likelihood_of_ones_own_needs():
    case = regression_case()
    likelihood = Laplacian()
    prediction = case.graph.evaluate(case.tensors, case.batch.inputs)
    expected = torch.distributions.Laplace(prediction, 1.0).log_prob(case.batch.targets).sum(-1)
    torch.testing.assert_close(case.log_likelihood(likelihood), expected)
    noise = full_noise(likelihood, case.batch)
    assert isinstance(likelihood.passes(case.graph, case.tensors, case.batch, noise), Outputs)
    found = likelihood.value_grad_and_squares(case.graph, case.params, case.buffers, case.batch, noise)
    for name, gradient in case.gradient(likelihood).items():
        torch.testing.assert_close(found.gradient[name], gradient)
    squares = torch.zeros_like(case.params["1.weight"])
    for b in range(SIZE):
        one = case._replace(batch=Batch(case.batch.inputs[b : b + 1], case.batch.targets[b : b + 1]))
        squares += one.gradient(likelihood)["1.weight"].square()
    torch.testing.assert_close(found.squares["1.weight"], squares)
