"""Compact Gaussians: deviations in float16, and what is stored is what is sampled."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import batch_norm_net, gaussian, generator, inputs, network

KINDS = ("diagonal", "low rank")


def posterior(kind, net=None, dtype=torch.float32, scale=0.1):
    net = (network() if net is None else net).to(dtype)
    mean, random = {name: p.detach() for name, p in net.named_parameters()}, generator(3)
    std = {name: scale * torch.rand(p.shape, generator=random, dtype=dtype) for name, p in mean.items()}
    if kind == "diagonal":
        return cb.DiagonalGaussian(net, mean, std, domain=(0.0, 1.0))
    factors = {name: scale * torch.randn(4, *p.shape, generator=random, dtype=dtype) for name, p in mean.items()}
    return cb.LowRankGaussian(net, mean, std, factors, domain=(0.0, 1.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
class TestCompact:
    def test_the_mean_is_untouched_and_the_rest_is_rounded(self, kind, dtype):
        made = posterior(kind, dtype=dtype)
        small = made.compact()
        assert type(small) is type(made)
        for key, tensor in made.tensors().items():
            stored = small.tensors()[key]
            assert stored.dtype == (dtype if key.startswith("mean:") else torch.float16), key
            assert torch.equal(stored, tensor.to(stored.dtype)), key
        assert small.graph == made.graph and small.domain == made.domain
        assert small.metadata["deviations"] == "float16" and "deviations" not in made.metadata
        assert "float16" in repr(small) and "float16" not in repr(made)

    def test_saved_and_loaded_it_has_the_same_predictors_to_the_bit(self, kind, dtype, tmp_path):
        small, x = posterior(kind, dtype=dtype).compact(), inputs().to(dtype)
        small.save(tmp_path)
        again = cb.load(tmp_path)
        one, other = small.predictor(7, seed=2), again.predictor(7, seed=2)
        assert one.digest == other.digest and one.dtype == other.dtype == dtype
        assert torch.equal(one(x), other(x))
        assert again.metadata["deviations"] == "float16"
        for key, tensor in small.tensors().items():
            assert again.tensors()[key].dtype == tensor.dtype and torch.equal(again.tensors()[key], tensor)

    def test_it_samples_the_rounded_gaussian_in_the_precision_of_the_mean(self, kind, dtype):
        """As a Gaussian does whose deviations are the same numbers in full precision."""
        small = posterior(kind, dtype=dtype).compact()
        full = {key: tensor.to(dtype) for key, tensor in small.tensors().items()}
        wide = type(small).from_tensors(small.network, full, small.metadata)
        drawn, expected = small.sample(5, generator(1)), wide.sample(5, generator(1))
        for name, tensor in expected.items():
            assert drawn[name].dtype == tensor.dtype and torch.equal(drawn[name], tensor), name

    def test_a_second_time_changes_nothing(self, kind, dtype):
        small = posterior(kind, dtype=dtype).compact()
        assert small.compact().predictor(3).digest == small.predictor(3).digest


@settings(max_examples=30, deadline=None)
@given(exponent=st.integers(-24, 10), seed=st.integers(0, 1000))
def test_what_is_lost_is_what_float16_loses(exponent, seed):
    """Half a unit in the last of 11 digits, or 2^-25 below 2^-14."""
    made = gaussian()
    random = generator(seed)
    made.std = {name: (1 + torch.rand(s.shape, generator=random)) * 2.0**exponent for name, s in made.std.items()}
    small = made.compact()
    for name, std in made.std.items():
        lost = (small.std[name].double() - std.double()).abs()
        assert bool((lost <= torch.clamp(2.0**-11 * std.double(), min=2.0**-25)).all()), name


def test_it_is_about_half_as_large(tmp_path):
    net = cb.networks.mlp(40, [60], 10)
    mean = dict(net.named_parameters())
    std = {name: torch.full_like(p, 0.1) for name, p in mean.items()}
    factors = {name: 0.1 * torch.randn(20, *p.shape, generator=generator()) for name, p in mean.items()}
    made = cb.LowRankGaussian(net, mean, std, factors)
    sizes = [each.save(tmp_path / name).stat().st_size for name, each in (("a", made), ("b", made.compact()))]
    number = sum(p.numel() for p in mean.values())
    assert sizes[0] - sizes[1] == pytest.approx(2 * 21 * number, rel=0.01)


class TestStatistics:
    """Batch norm: the rounded Gaussian's samples have statistics of their own."""

    x = torch.rand(40, 4, generator=torch.Generator().manual_seed(1))

    @pytest.mark.parametrize("kind", KINDS)
    def test_they_are_those_of_the_compact_posteriors_samples(self, kind, tmp_path):
        made = posterior(kind, batch_norm_net(), scale=0.3)
        made.keep_statistics(self.x, samples=6)
        made.keep_statistics(self.x, samples=3, seed=5)
        small = made.compact(data=self.x)
        assert {seed: len(kept["1.running_mean"]) for seed, kept in small.statistics.items()} == {0: 6, 5: 3}
        small.save(tmp_path)
        again, fresh = cb.load(tmp_path), cb.load(tmp_path)
        fresh.statistics.clear()
        for samples, seed in ((6, 0), (4, 0), (3, 5)):
            expected = fresh.predictor(samples, seed=seed, data=self.x)
            assert again.predictor(samples, seed=seed).digest == expected.digest
            assert small.predictor(samples, seed=seed).digest == expected.digest
            assert made.predictor(samples, seed=seed).digest != expected.digest

    def test_they_do_differ(self):
        """Or nobody would notice if those of the other posterior were kept."""
        made = posterior("low rank", batch_norm_net(), scale=0.3)
        made.keep_statistics(self.x)
        small = made.compact(data=(self.x, torch.zeros(40)))
        for name, kept in small.statistics[0].items():
            assert not torch.equal(kept, made.statistics[0][name]), name
            assert torch.allclose(kept, made.statistics[0][name], rtol=0.05, atol=0.05), name

    def test_the_networks_own_stay(self):
        made = posterior("low rank", batch_norm_net())
        for name, tensor in made.compact().buffers.items():
            assert torch.equal(tensor, made.buffers[name])

    def test_without_data_it_says_what_to_do(self):
        made = posterior("low rank", batch_norm_net())
        made.keep_statistics(self.x)
        with pytest.raises(InvalidInput, match=r"compact\(data=x_train\)"):
            made.compact()

    def test_where_none_are_kept_none_are_needed(self):
        small = posterior("low rank", batch_norm_net()).compact()
        assert not small.statistics
        assert small.predictor(2, data=self.x).size == 2


@pytest.mark.parametrize("value", [70_000.0, 1e30])
def test_deviations_that_float16_cannot_hold_are_refused(value):
    made = gaussian()
    made.std["1.weight"][0, 0] = value
    with pytest.raises(InvalidInput, match=r"std:1\.weight.*65504.*diverged"):
        made.compact()


def test_a_certificate_of_the_compact_posterior_is_about_what_is_stored(tmp_path):
    small = posterior("low rank", scale=0.01).compact()
    x = inputs(20)
    result = cb.certify(small.predictor(5), x, eps=1e-3)
    small.save(tmp_path)
    predictor = cb.load(tmp_path).predictor(5)
    assert result.digest == predictor.digest
    assert bool(result.certified.any())
    assert cb.check_certificate(result, predictor, x).holds


def test_the_low_rank_part_is_summed_in_float32_and_in_a_fixed_order():
    made = posterior("low rank").compact()
    drawn, random = made.sample(3, generator(5)), generator(5)
    noise = {n: torch.randn((3, *m.shape), generator=random) * made.std[n].float() + m for n, m in made.mean.items()}
    shared = torch.randn((3, 4), generator=random, dtype=torch.float64).float().numpy()
    for name, start in noise.items():
        expected = start.numpy()
        for k in range(4):
            factor = made.factors[name][k].float().numpy()
            expected = expected + np.stack([shared[s, k] * factor for s in range(3)])
        assert np.array_equal(drawn[name].numpy(), expected), name
