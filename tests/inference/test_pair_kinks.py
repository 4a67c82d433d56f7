"""Kinks of pairs of classes: where |w_y - w_j| decides how wide the weights of a last layer are.

References are in float64. A difference of weights is normal, so that expectations of its magnitude take a quadrature in
one dimension; the Gaussian nearest in KL divergence is found by a search that knows nothing of the equations.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.inference._flat import FLAT, FlatTarget
from certibayes.inference._kink import PRECISE, kink_curvatures
from certibayes.inference._many import ManyTarget
from certibayes.inference._pair_kinks import PRECISE_ROUNDS, ROUNDS, laplacians, pair_deviations
from certibayes.likelihoods import PAIRS, Batch

from ..strategies import in_turn, law
from .cases import LIKELIHOODS, batch_norm_net, data_for, fit, network, target_for

MARGINS = LIKELIHOODS["ibp-margins"]
NODES = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
WEIGHTS = torch.exp(-NODES.square() / 2) / math.sqrt(2 * math.pi) * (NODES[1] - NODES[0])


def problem(seed, classes=4, width=3, scale=0.1, steep=100.0):
    """Means, precisions and slopes over several orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    slopes = steep * rand(classes, classes, width) ** 4
    slopes = (slopes + slopes.transpose(0, 1)) * (1 - torch.eye(classes, dtype=torch.float64))[..., None]
    return scale * torch.randn(classes, width, generator=generator).double(), 1e3 * rand(classes, width) ** 3, slopes


def by_quadrature(difference, sigma):
    """E|x| under N(difference, sigma²)."""
    return ((difference[..., None] + sigma[..., None] * NODES).abs() * WEIGHTS).sum(-1)


def folded_normal(difference, sigma):
    """The same in closed form."""
    ratio = difference / sigma
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    return 2 * sigma * density + difference * torch.erf(ratio / math.sqrt(2))


def divergence(mean, rest, slopes, log_std, magnitude):
    """KL divergence to exp(-Σ slope_kj |w_k - w_j| - Σ rest w²/2), each pair once, up to a constant."""
    std = log_std.exp()
    sigma = (std.square()[:, None] + std.square()).sqrt()
    widened = (slopes * magnitude(mean[:, None] - mean, sigma)).sum() / 2
    return widened + (rest * std.square()).sum() / 2 - log_std.sum()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0])
def test_the_gaussian_is_the_nearest(seed, scale):
    mean, rest, slopes = problem(seed, width=2, scale=scale)
    log_std = torch.full_like(mean, -3.0, requires_grad=True)
    search = torch.optim.LBFGS([log_std], lr=0.5, max_iter=150, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure():
        search.zero_grad()
        value = divergence(mean, rest, slopes, log_std, by_quadrature)
        value.backward()
        return value

    search.step(closure)
    found = pair_deviations(mean, rest, slopes, PRECISE, PRECISE_ROUNDS)
    torch.testing.assert_close(found, log_std.detach().exp(), rtol=5e-4, atol=0)


@law(5)
@given(
    seed=st.integers(0, 10**6), classes=st.integers(2, 12), scale=st.sampled_from([0.0, 1e-3, 0.03, 1.0, 30.0]),
    steep=st.sampled_from([0.0, 1e-2, 10.0, 1e5]),
)  # fmt: skip
def test_rounds_settle_and_the_equations_are_solved(seed, classes, scale, steep):
    mean, rest, slopes = problem(seed, classes, 5, scale, steep)
    stds = [pair_deviations(mean, rest, slopes, 40, rounds) for rounds in (ROUNDS, PRECISE_ROUNDS, 150)]
    torch.testing.assert_close(stds[1], stds[2], rtol=1e-3, atol=0)
    assert float((stds[0] / stds[2]).log().abs().mean()) < 0.05
    std, difference = stds[2], mean[:, None] - mean
    sigma = (std.square()[:, None] + std.square()).sqrt()
    kinks = 2 * slopes / sigma * torch.exp(-(difference / sigma).square() / 2) / math.sqrt(2 * math.pi)
    left = std.square() * (rest + kinks.sum(1))
    torch.testing.assert_close(left, torch.ones_like(left), rtol=1e-3, atol=0)


@law(10)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 10), scale=st.sampled_from([0.0, 1e-3, 0.03, 1.0]))
def test_every_round_comes_nearer(seed, classes, scale):
    mean, rest, slopes = problem(seed, classes, 5, scale)
    stds = [pair_deviations(mean, rest, slopes, 40, rounds) for rounds in range(8)]
    values = [float(divergence(mean, rest, slopes, std.log(), folded_normal)) for std in stds]
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(values)), values


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_two_equal_weights_have_the_width_that_is_known(temperature):
    """With nothing but c |w_1 - w_2|: s² N c 2 φ(0) / (sqrt(2) s) = T."""
    slopes = torch.tensor([[0.0, 50.0], [50.0, 0.0]], dtype=torch.float64)[..., None] / temperature
    mean, rest = torch.full((2, 1), 0.3, dtype=torch.float64), torch.full((2, 1), 1e-9, dtype=torch.float64)
    std = pair_deviations(mean, rest, slopes, PRECISE, PRECISE_ROUNDS)
    torch.testing.assert_close(std, torch.full_like(std, math.sqrt(math.pi) * temperature / 50), rtol=1e-5, atol=0)


def test_far_apart_or_without_slopes_nothing_changes():
    mean, rest, slopes = problem(0, scale=1.0)
    far = mean + 100 * torch.arange(4)[:, None]
    for std in (
        pair_deviations(far, rest, slopes, PRECISE, ROUNDS),
        pair_deviations(mean, rest, 0 * slopes, PRECISE, ROUNDS),
    ):
        torch.testing.assert_close(std, rest.rsqrt(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("temperatures", [(0.3, 0.3), (1.0, 0.1)])
def test_flat_and_many_targets_find_the_same(temperatures):
    targets = [target_for(MARGINS, torch.float64, temperature)[0] for temperature in temperatures]
    params = target_for(MARGINS, torch.float64)[1]
    generator = torch.Generator().manual_seed(0)
    slopes = [
        {name: torch.rand(s.shape, generator=generator).double() for name, s in targets[0].zero_slopes(params).items()}
        for _ in targets
    ]
    curvature = {name: torch.rand(p.shape, generator=generator).double() for name, p in params.items()}
    expected = [kink_curvatures(target, params, curvature, own) for target, own in zip(targets, slopes, strict=True)]
    without = [
        kink_curvatures(t, params, curvature, {n: s for n, s in own.items() if n != PAIRS})
        for t, own in zip(targets, slopes, strict=True)
    ]
    for own, before in zip(expected, without, strict=True):
        assert all(torch.equal(own[name], before[name]) == (name != "3.weight") for name in params)
    many = ManyTarget.of_all(targets, params)
    flat = FlatTarget.of(targets[0], params)
    joined = flat.layout.joined
    alone = kink_curvatures(flat, joined(params), joined(curvature), joined(slopes[0]))
    torch.testing.assert_close(flat.layout.split(alone[FLAT]), expected[0])
    arguments = [{n: torch.stack([one, one]) for n, one in joined(entries).items()} for entries in (params, curvature)]
    stacked = {n: torch.stack([joined(own)[n] for own in slopes]) for n in (FLAT, PAIRS)}
    found = many.layout.split(kink_curvatures(many, *arguments, stacked)[FLAT])
    for index, own in enumerate(expected):
        torch.testing.assert_close({name: tensor[index] for name, tensor in found.items()}, own)


SIZE, SLOPE = 1500, 0.5
"""Two classes, inputs 0 ± 1: the loss is log(1 + exp |w_0 - w_1|), of slope 1/2 at its kink."""

METHODS = {
    "vogn": cb.VOGN(lr=0.05, betas=(0.9, 0.95), initial_std=0.001),
    "noisy-adam": cb.NoisyAdam(lr=0.05, betas=(0.9, 0.95), initial_std=0.001),
    "laplace": cb.Laplace(lr=1e-4, structure="diagonal", fisher="empirical"),
    "laplace, last layer": cb.Laplace(lr=1e-4, structure="last-layer", fisher="empirical"),
}


def two_weights(algorithm, temperature=1.0):
    """Infer two weights on which the likelihood depends by the magnitude of their difference alone."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False)).double()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[0.3], [0.3 + 1e-5]]))
    likelihood = cb.RobustCategorical(cb.TwoPoint(1.0, 0.0), cb.IBP(margins=True), domain=None, ramp=None)
    data = torch.zeros(SIZE, 1, 1, dtype=torch.float64), torch.arange(SIZE) % 2
    posterior = cb.fit(
        net, data, algorithm=algorithm, likelihood=likelihood, prior=cb.GaussianPrior(std=10.0), epochs=2,
        batch_size=10, temperature=temperature, schedule=cb.Schedule("cosine", floor=0.0), progress=False,
    )  # fmt: skip
    return posterior.sample(20_000, torch.Generator().manual_seed(0))["1.weight"].squeeze(-1)


@pytest.mark.parametrize(("name", "temperature"), in_turn(METHODS, [0.25, 1.0]))
def test_two_weights_are_as_wide_as_their_kink_allows(name, temperature):
    """The difference has standard deviation sqrt(π/2) T / (N c), if its own; without correlations sqrt(2) times that.

    With correlations the sum of the weights is as wide as the prior has it.
    """
    sample, own = two_weights(METHODS[name], temperature), math.sqrt(math.pi / 2) * temperature / (SIZE * SLOPE)
    apart = float((sample[:, 0] - sample[:, 1]).std())
    if name == "laplace, last layer":
        assert apart == pytest.approx(own, rel=0.05)
        assert float((sample[:, 0] + sample[:, 1]).std()) == pytest.approx(math.sqrt(200 * temperature), rel=0.05)
    else:
        assert apart == pytest.approx(math.sqrt(2) * own * math.sqrt(2), rel=0.05)
        assert float(sample[:, 0].std()) == pytest.approx(math.sqrt(2) * own, rel=0.05)


@pytest.mark.parametrize("name", ["vogn", "noisy-adam"])
def test_a_step_keeps_the_running_mean_and_refresh_uses_it(name):
    target, params, batch = target_for(MARGINS, torch.float64)
    noise, algorithm = MARGINS.draw(1.0, batch, None), METHODS[name]
    start = algorithm.init(target, params, torch.Generator())
    assert start.slopes.keys() == {*params, PAIRS} and start.kinks.keys() == params.keys()
    state, _ = algorithm.update(target, start, batch, noise, torch.Generator().manual_seed(1))
    curvature = state.fisher if name == "noisy-adam" else state.curvature
    deviations = algorithm.standard_deviations(target, start)
    generator = torch.Generator().manual_seed(1)
    sample = {
        n: p + torch.randn(p.shape, generator=generator, dtype=p.dtype) * deviations[n] for n, p in params.items()
    }
    expected = MARGINS.value_and_slopes(target.graph, sample, {}, Batch(*batch), noise, -0.05 / len(batch.inputs))[2]
    torch.testing.assert_close(state.slopes[PAIRS], expected[PAIRS])
    refreshed = algorithm.refresh(target, state)
    assert float(refreshed.kinks["3.weight"].max()) > 0
    torch.testing.assert_close(refreshed.kinks, kink_curvatures(target, state.mean, curvature, state.slopes))
    assert refreshed.slopes is state.slopes


def test_without_kinks_there_are_no_pairs():
    target, params, _ = target_for(MARGINS)
    state = cb.NoisyAdam(kinks=False).init(target, params, torch.Generator())
    assert state.slopes == state.kinks == {}
    target, params, _ = target_for(LIKELIHOODS["ibp"])
    assert cb.NoisyAdam().init(target, params, torch.Generator()).slopes.keys() == params.keys()


class TestLaplace:
    """The kinks of all pairs, around the weights that MAP found."""

    @staticmethod
    def fitted(structure, kinks=True):
        algorithm = cb.Laplace(lr=0.01, structure=structure, fisher="empirical", kinks=kinks)
        data = data_for(MARGINS, torch.float64)
        return fit(MARGINS, network().double(), algorithm=algorithm, train=data, temperature=0.5)

    @staticmethod
    def slopes(posterior):
        """Derivatives of the summed loss with respect to |w_k - w_j|, from all data at once."""
        batch = data_for(MARGINS, torch.float64)
        noise = MARGINS.draw(1.0, batch, None)
        return MARGINS.value_and_slopes(posterior.graph, posterior.mean, posterior.buffers, batch, noise, -1.0)[2][
            PAIRS
        ]

    @staticmethod
    def curvatures(posterior, variance):
        mean = posterior.mean["3.weight"]
        density = torch.exp(-(mean[:, None] - mean).square() / variance / 2) / math.sqrt(2 * math.pi)
        return 2 * TestLaplace.slopes(posterior) * density / variance.sqrt()

    def test_the_diagonal_solves_its_equations(self):
        with_kinks, without = self.fitted("diagonal"), self.fitted("diagonal", kinks=False)
        variance = with_kinks.std["3.weight"].square()
        kinks = self.curvatures(with_kinks, variance[:, None] + variance).sum(1)
        left = variance * (0.5 / without.std["3.weight"].square() + kinks)
        torch.testing.assert_close(left, torch.full_like(left, 0.5), rtol=1e-4, atol=0)
        assert float((with_kinks.std["3.weight"] / without.std["3.weight"]).min()) < 0.9

    def test_the_last_layer_nearly_solves_its_equations(self):
        """With its covariances: rounds over its inputs leave a few percent."""
        with_kinks, without = self.fitted("last-layer"), self.fitted("last-layer", kinks=False)
        covariance, plain = (posterior.factor @ posterior.factor.T for posterior in (with_kinks, without))
        classes, width = with_kinks.mean["3.weight"].shape
        assert with_kinks.names == ("3.weight", "3.bias")
        index = torch.arange(classes * width).view(classes, width)
        own = covariance.diagonal()[: index.numel()].view(classes, width)
        variance = own[:, None] + own - 2 * covariance[index[:, None].expand(-1, classes, -1), index]
        kinks = self.curvatures(with_kinks, variance.clamp(min=1e-30))
        precision = torch.linalg.inv(plain) * 0.5
        for k in range(classes):
            for j in range(k):
                for i in range(width):
                    direction = torch.zeros(len(precision), dtype=torch.float64)
                    direction[index[k, i]], direction[index[j, i]] = 1.0, -1.0
                    precision += kinks[k, j, i] * torch.outer(direction, direction)
        expected = torch.linalg.inv(precision) * 0.5
        torch.testing.assert_close(covariance.diagonal().sqrt(), expected.diagonal().sqrt(), rtol=0.05, atol=0)
        assert float((covariance.diagonal() / plain.diagonal()).min()) < 0.8


def test_laplacians_are_sums_over_pairs():
    weights = torch.rand(3, 3, 2, generator=torch.Generator().manual_seed(0))
    weights = weights + weights.transpose(0, 1)
    expected = torch.zeros(2, 3, 3)
    for k in range(3):
        for j in range(k):
            direction = torch.eye(3)[k] - torch.eye(3)[j]
            expected += weights[k, j][:, None, None] * torch.outer(direction, direction)
    torch.testing.assert_close(laplacians(weights), expected)


@pytest.mark.parametrize("structure", ["diagonal", "last-layer"])
def test_laplace_with_batch_norm_takes_its_pairs_by_constants(structure):
    """Also where steps without a clean pass, by statistics of the batch, tell of no kinks."""
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), cb.IBP(margins=True))
    posteriors = [
        fit(
            likelihood,
            batch_norm_net(),
            algorithm=cb.Laplace(structure=structure, fisher="empirical", kinks=kinks),
            batch_norm="batch",
        )
        for kinks in (True, False)
    ]
    with_kinks, without = (
        posterior.std["3.weight"] if structure == "diagonal" else posterior.factor.norm(dim=1)
        for posterior in posteriors
    )
    assert bool((with_kinks <= without * 1.001).all()) and float((with_kinks / without).min()) < 0.95
