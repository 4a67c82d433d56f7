"""Posteriors of networks with batch norm: every sample that predicts has the statistics of its own weights."""

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import batch_norm_net, generator

SPLIT = cb.data.Split
KINDS = ("diagonal", "low rank")


def training_data(number: int = 40):
    return torch.rand(number, 4, generator=torch.Generator().manual_seed(1))


def posterior(kind: str = "diagonal", std: float = 0.1, dtype: torch.dtype = torch.float32):
    net = batch_norm_net().to(dtype)
    mean = {name: p.detach() for name, p in net.named_parameters()}
    stds = {name: torch.full_like(p, std) for name, p in mean.items()}
    if kind == "diagonal":
        return cb.DiagonalGaussian(net, mean, stds)
    random = generator(3)
    factors = {name: 0.1 * torch.randn(4, *p.shape, generator=random, dtype=dtype) for name, p in mean.items()}
    return cb.LowRankGaussian(net, mean, stds, factors)


def torch_training_mode(samples, x):
    """Log of the mean softmax of the very samples, each as a module in train mode on all of the data."""
    probabilities = []
    for i in range(len(samples["0.weight"])):
        net = batch_norm_net().to(x.dtype)
        net.load_state_dict({**net.state_dict(), **{name: tensor[i] for name, tensor in samples.items()}})
        probabilities.append(net.train()(x).softmax(-1))
    return torch.stack(probabilities).mean(0).log()


@pytest.mark.parametrize("kind", KINDS)
class TestGaussians:
    def test_the_predictor_is_torch_in_training_mode_on_the_training_set(self, kind):
        x = training_data()
        predictor = posterior(kind).predictor(6, seed=2, data=x)
        torch.testing.assert_close(predictor(x), torch_training_mode(predictor.samples, x), rtol=0.0, atol=2e-3)

    def test_without_data_it_says_what_to_do(self, kind):
        with pytest.raises(InvalidInput, match=r"seed 2 are not kept \(kept: none\).*data=x_train.*keep_statistics"):
            posterior(kind).predictor(6, seed=2)

    def test_kept_statistics_serve_every_smaller_predictor_of_the_seed(self, kind):
        made, x = posterior(kind), training_data()
        made.keep_statistics(x, samples=6, seed=2)
        whole = made.predictor(6, seed=2)
        assert whole.digest == posterior(kind).predictor(6, seed=2, data=x).digest
        part = made.predictor(4, seed=2)
        for name, tensor in part.samples.items():
            assert torch.equal(tensor, whole.samples[name][:4]), name
        for samples, seed in ((7, 2), (6, 3)):
            with pytest.raises(InvalidInput, match="kept: 6 of seed 2"):
                made.predictor(samples, seed=seed)
            assert made.predictor(samples, seed=seed, data=x).size == samples
        assert made.statistics.keys() == {2}

    def test_they_survive_the_disk(self, kind, tmp_path):
        made, x = posterior(kind), training_data()
        made.keep_statistics(x)
        made.keep_statistics(x, samples=3, seed=-5)
        made.save(tmp_path)
        again = cb.load(tmp_path)
        assert again.predictor().digest == made.predictor().digest
        assert again.predictor(3, seed=-5).digest == made.predictor(3, seed=-5).digest
        assert torch.equal(again.predictor(10)(x), made.predictor(10)(x))
        assert again.tensors().keys() == made.tensors().keys()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_the_digest_does_not_depend_on_how_sums_are_split(self, kind, dtype):
        made, x = posterior(kind, dtype=dtype), training_data(900).to(dtype)
        digest, threads = made.predictor(5, data=x).digest, torch.get_num_threads()
        try:
            torch.set_num_threads(threads + 1)
            assert made.predictor(5, data=x).digest == digest
        finally:
            torch.set_num_threads(threads)
        # Statistics are those of a set of examples: another order adds them up in another way.
        assert made.predictor(5, data=x.flip(0)).digest == digest

    def test_every_kind_of_data_is_the_same_data(self, kind):
        made, x = posterior(kind), training_data()
        y = torch.zeros(len(x), dtype=torch.int64)
        dataset = cb.data.DataSet("mine", SPLIT(x, y), SPLIT(x[:2], y[:2]), ("a", "b", "c"), (0.0, 1.0))
        digest = made.predictor(3, data=x).digest
        for data in (x.numpy(), x.tolist(), (x, y), [x, y], (x.numpy(), y), dataset, x.double()):
            assert made.predictor(3, data=data).digest == digest

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (torch.rand(1, 4), "at least two"),
            (torch.rand(()), "at least two"),
            (torch.rand(8, 5), "takes a batch of"),
            (torch.randint(255, (8, 4)), "x / 255"),
            (torch.full((8, 4), float("nan")), "training inputs"),
            ("digits", "cannot be read as a tensor|at least two"),
        ],
        ids=["one", "none", "shape", "bytes", "nan", "name"],
    )
    def test_data_that_cannot_be_used(self, kind, data, message):
        with pytest.raises(InvalidInput, match=message):
            posterior(kind).predictor(3, data=data)
        with pytest.raises(InvalidInput, match=message):
            posterior(kind).keep_statistics(data)

    def test_weights_drawn_afresh_have_no_statistics(self, kind):
        made = posterior(kind)
        made.keep_statistics(training_data())
        x, y = training_data(3), torch.tensor([0, 1, 2])
        with pytest.raises(InvalidInput, match=r"certify\(posterior.predictor\(\)"):
            cb.robust_probability(made, x, y, eps=0.1, samples=5)
        with pytest.raises(InvalidInput, match=r"attack\(posterior.predictor\(\)"):
            cb.attack(made, x, y, eps=0.1)

    def test_certificates_are_about_these_samples(self, kind):
        made, x = posterior(kind, std=0.01), training_data()
        made.keep_statistics(x, samples=3)
        predictor = made.predictor(3)
        y = predictor.predict(x)
        result = cb.certify(predictor, x, y, eps=1e-3)
        assert bool(result.certified.any())
        assert result.provenance.digest == predictor.digest
        attacked = cb.attack(predictor, x, y, eps=1e-3)
        assert not bool((attacked.success & result.certified).any())


def test_points_and_samples_come_with_their_own():
    for made in (cb.Point(batch_norm_net()), cb.Samples.from_modules([batch_norm_net(s) for s in range(4)])):
        assert not made.statistics_vary
        digest = made.predictor().digest
        assert made.predictor(data=training_data()).digest == digest
        made.keep_statistics(training_data())
        assert not made.statistics and made.predictor().digest == digest


def test_networks_without_batch_norm_need_nothing():
    net = cb.networks.mlp(4, [5], 3)
    mean = dict(net.named_parameters())
    made = cb.DiagonalGaussian(net, mean, {name: torch.full_like(p, 0.1) for name, p in mean.items()})
    assert made.predictor(3).digest == made.predictor(3, data=training_data()).digest


def test_a_last_layer_that_is_random_leaves_statistics_as_they_are():
    net = batch_norm_net()
    mean, size = dict(net.named_parameters()), 18
    last = cb.posteriors.LastLayerGaussian(net, mean, 0.1 * torch.eye(size), ["3.weight", "3.bias"])
    assert not last.statistics_vary
    assert torch.equal(last.predictor(2).samples["1.running_mean"][1], net[1].running_mean)
    first = cb.posteriors.LastLayerGaussian(net, mean, 0.1 * torch.eye(25), ["0.weight", "0.bias"])
    assert first.statistics_vary


def test_the_low_rank_part_is_summed_in_a_fixed_order():
    """One factor after another, each product and each sum rounded: the same bits on every device."""
    made = posterior("low rank")
    drawn = made.sample(3, generator(5))
    random = generator(5)
    noise = {n: torch.randn((3, *m.shape), generator=random) * made.std[n] + m for n, m in made.mean.items()}
    shared = torch.randn((3, 4), generator=random, dtype=torch.float64).float().numpy()
    for name, start in noise.items():
        expected = start.numpy()
        for k in range(4):
            factor = made.factors[name][k].numpy()
            expected = expected + np.stack([shared[s, k] * factor for s in range(3)])
        assert np.array_equal(drawn[name].numpy(), expected), name


def test_statistics_of_data_in_order_of_class_are_those_of_all_classes():
    """More examples than are taken: they come from all over the data."""
    made = posterior()
    x = torch.cat([torch.zeros(15_000, 4), torch.ones(15_000, 4)])
    sample = made.predictor(1, data=x).samples
    hidden = nn.functional.linear(torch.tensor([[0.0] * 4, [1.0] * 4]), sample["0.weight"][0], sample["0.bias"][0])
    torch.testing.assert_close(sample["1.running_mean"][0], hidden.mean(0), rtol=1e-3, atol=1e-3)
