"""Posteriors of one architecture joined into one: an ensemble of centers, or of the samples of each (MultiSWAG)."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import batch_norm_net, inputs, network, ones_like_each


def gaussian(seed: int, net=batch_norm_net, std: float = 0.1, **settings):
    module = net(seed)
    mean = {name: p.detach() for name, p in module.named_parameters()}
    std_of_each = {name: std * one for name, one in ones_like_each(mean).items()}
    return cb.DiagonalGaussian(module, mean, std_of_each, **settings)


def training_data():
    return torch.rand(40, 4, generator=torch.Generator().manual_seed(1))


class TestJoin:
    @pytest.mark.parametrize("kept", [False, True])
    def test_samples_and_statistics_are_those_of_each_predictor(self, kept):
        parts, x = [gaussian(seed) for seed in range(3)], training_data()
        for part in parts:
            if kept:
                part.keep_statistics(x, samples=5)
        made = cb.Samples.join(*parts, each=4, data=None if kept else x)
        assert len(made) == 12 and made.held == 12 and not made.statistics_vary
        alone = [part.predictor(4, data=x) for part in parts]
        for name, tensor in made.predictor().samples.items():
            assert torch.equal(tensor, torch.cat([one.samples[name] for one in alone])), name
        mean = torch.stack([one.probabilities(inputs()) for one in alone]).mean(0)
        torch.testing.assert_close(made.predictor().probabilities(inputs()), mean)

    def test_an_ensemble_of_centers(self):
        parts = [gaussian(seed) for seed in range(3)]
        made = cb.Samples.join(*(part.center() for part in parts))
        modules = cb.Samples.from_modules([batch_norm_net(seed) for seed in range(3)])
        assert made.predictor().digest == modules.predictor().digest

    def test_all_of_finitely_many_and_35_of_others(self):
        several = cb.Samples.from_modules([batch_norm_net(seed) for seed in range(4)])
        made = cb.Samples.join(cb.Point(batch_norm_net(5)), several, gaussian(0), data=training_data())
        assert len(made) == 1 + 4 + 35
        with pytest.raises(InvalidInput, match="5 samples were asked for, but this posterior holds 4"):
            cb.Samples.join(several, each=5)

    def test_joined_once_more(self):
        one, other = (cb.Samples.join(cb.Point(network(s)), cb.Point(network(s + 1))) for s in (0, 2))
        assert torch.equal(cb.Samples.join(one, other).stacked["1.weight"][3], network(3)[1].weight)

    def test_a_seed_of_its_own(self):
        part = gaussian(0, network)
        made = cb.Samples.join(part, each=3, seed=7)
        assert made.predictor().digest == part.predictor(3, seed=7).digest

    def test_it_survives_the_disk_and_is_certified(self, tmp_path):
        parts, x = [gaussian(seed, std=0.01, domain=(0.0, 1.0)) for seed in range(2)], training_data()
        made = cb.Samples.join(*parts, each=5, data=x)
        made.save(tmp_path)
        predictor = cb.load(tmp_path).predictor()
        assert predictor.digest == made.predictor().digest and predictor.domain == (0.0, 1.0)
        y = predictor.predict(x)
        result = cb.certify(predictor, x, y, eps=1e-3, method=cb.Elided(bounds="ibp"))
        assert bool(result.certified.any())
        assert not bool((cb.attack(predictor, x, y, eps=1e-3).success & result.certified).any())

    def test_metadata_say_what_all_have_in_common_and_what_each_has(self):
        parts = [gaussian(seed, network) for seed in range(2)]
        for seed, part in enumerate(parts):
            part.metadata |= {"algorithm": {"name": "SWAG"}, "temperature": 1.0, "seed": seed, "history": []}
            part.metadata |= {"held_out": {"accuracy": 0.5}}
        made = cb.Samples.join(*parts, each=2)
        assert made.metadata.keys() == {"algorithm", "temperature", "joined"}
        assert [own["seed"] for own in made.metadata["joined"]] == [0, 1]
        assert made.metadata["joined"][0]["posterior"] == "DiagonalGaussian"
        assert "Samples: 4 samples of 2 posteriors" in repr(made) and "SWAG, temperature 1" in repr(made)

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            (lambda: (), "at least one posterior"),
            (lambda: ([gaussian(0, network)],), r"argument 0 is a list.*takes a star"),
            (lambda: (gaussian(0, network), network()), "argument 1 is a Sequential"),
            (lambda: (gaussian(0, network), gaussian(0)), "0 and 1 differ in architecture"),
            (lambda: (gaussian(0, network), gaussian(1, network, domain=(0.0, 1.0))), "differ in domain"),
            (lambda: (gaussian(0, network), gaussian(1, network, metadata={"task": "regression"})), "differ in task"),
            (lambda: (gaussian(0, network), gaussian(1, lambda seed: network(seed).double())), "differ in precision"),
            (lambda: (gaussian(0), gaussian(1)), "depend on the weights that are drawn.*not kept"),
        ],
        ids=["none", "list", "module", "architecture", "domain", "task", "precision", "statistics"],
    )
    def test_what_cannot_be_joined(self, parts, message):
        with pytest.raises(InvalidInput, match=message):
            cb.Samples.join(*parts(), each=2)


class TestCenter:
    def test_it_is_the_network_of_the_mean_with_its_statistics(self):
        net = batch_norm_net(3)
        center = gaussian(3).center()
        assert isinstance(center, cb.Point)
        torch.testing.assert_close(center.predictor()(inputs()), torch.log_softmax(net(inputs()), -1))

    def test_of_a_last_layer(self):
        net = batch_norm_net()
        last = cb.LastLayerGaussian(net, dict(net.named_parameters()), torch.eye(18), ["3.weight", "3.bias"])
        assert "names" not in last.center().metadata
        assert last.center().predictor().digest == cb.Point(net).predictor().digest

    def test_of_a_fit_it_has_the_statistics_of_the_training_set(self, tmp_path):
        """As after the disk, whose network holds no parameters of its own."""
        x = torch.rand(64, 4, generator=torch.Generator().manual_seed(0))
        y = (x[:, 0] > 0.5).long() + (x[:, 1] > 0.5).long()
        swag = cb.SWAG(lr=0.01, start=0.5, every=1)
        made = cb.fit(batch_norm_net(), (x, y), algorithm=swag, epochs=4, batch_size=16, progress=False)
        made.save(tmp_path)
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        net.load_state_dict(made.mean, strict=False)
        expected = torch.log_softmax(net.train()(x), -1)
        for center in (made.center(), cb.load(tmp_path).center()):
            torch.testing.assert_close(center.predictor()(x), expected, rtol=0.0, atol=2e-3)
            assert center.metadata["history"] == made.metadata["history"]
