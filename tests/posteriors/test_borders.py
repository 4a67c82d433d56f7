"""What posteriors are given: domains, and parameters as they come."""

import numpy as np
import pytest
import torch

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import batch_norm_net, network, ones_like_each, stacked


def kinds_with(domain):
    net, mean = network(), dict(network().named_parameters())
    ones = ones_like_each(mean)
    return {
        "point": cb.Point(net, domain=domain),
        "gaussian": cb.DiagonalGaussian(net, mean, ones, domain=domain),
        "low rank": cb.LowRankGaussian(net, mean, ones, stacked(), domain=domain),
        "last layer": cb.LastLayerGaussian(net, mean, torch.eye(3), ["3.bias"], domain=domain),
        "samples": cb.Samples(net, stacked(), domain=domain),
        "modules": cb.Samples.from_modules([net, network(1)], domain=domain),
    }


class TestDomain:
    @pytest.mark.parametrize("kind", kinds_with(None))
    def test_every_kind_hands_it_on_and_keeps_it_on_disk(self, kind, tmp_path):
        made = kinds_with((-1, 2))[kind]
        assert made.domain == made.predictor(1).domain == (-1.0, 2.0)
        made.save(tmp_path)
        assert cb.load(tmp_path).domain == (-1.0, 2.0)
        assert kinds_with(None)[kind].domain is kinds_with(None)[kind].predictor(1).domain is None

    def test_the_digest_does_not_depend_on_it(self):
        assert kinds_with((0, 1))["samples"].predictor().digest == kinds_with(None)["samples"].predictor().digest

    def test_features_may_differ(self, tmp_path):
        low, high = torch.zeros(1, 4), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        cb.Point(network(), domain=(low, high)).save(tmp_path)
        found = cb.load(tmp_path).predictor().domain
        assert torch.equal(found[0], low.double())
        assert torch.equal(found[1], high.double())

    def test_points_may_not(self):
        with pytest.raises(InvalidInput, match="same for all points"):
            cb.Point(network(), domain=(torch.zeros(5, 4), torch.ones(5, 4)))

    @pytest.mark.parametrize("domain", [(1, 0), 3, "unit", (0, 1, 2)])
    def test_what_is_no_domain_is_refused(self, domain):
        with pytest.raises(InvalidInput, match="domain is"):
            cb.Point(network(), domain=domain)


class TestParametersAsTheyCome:
    """Arrays, lists of dictionaries, and slips."""

    def test_a_list_of_dictionaries_is_stacked(self):
        each = [dict(network(seed).named_parameters()) for seed in range(6)]
        found = cb.Samples(network(), each)
        assert all(torch.equal(found.stacked[name], tensor) for name, tensor in stacked().items())

    def test_buffers_may_be_among_them(self):
        nets = [batch_norm_net(seed) for seed in range(3)]
        buffers = ("1.running_mean", "1.running_var")
        each = [dict(net.named_parameters()) | {name: net.state_dict()[name] for name in buffers} for net in nets]
        expected = cb.Samples.from_modules(nets).predictor().digest
        assert cb.Samples(nets[0], each).predictor().digest == expected

    def test_modules_may_come_one_by_one(self):
        nets = [network(seed) for seed in range(3)]
        expected = cb.Samples.from_modules(nets).predictor().digest
        assert cb.Samples.from_modules(net for net in nets).predictor().digest == expected

    @pytest.mark.parametrize("kind", [np.asarray, lambda a: np.asarray(a, np.float64), lambda a: a.tolist()])
    def test_arrays_take_the_networks_precision(self, kind):
        plain = {name: kind(tensor.numpy()) for name, tensor in stacked().items()}
        assert cb.Samples(network(), plain).predictor().digest == cb.Samples(network(), stacked()).predictor().digest
        mean = {name: kind(p.detach().numpy()) for name, p in network().named_parameters()}
        assert cb.Point(network(), mean).predictor().digest == cb.Point(network()).predictor().digest
        assert cb.DiagonalGaussian(network(), mean, ones_like_each(dict(network().named_parameters()))).mean.keys()

    def test_names_that_do_not_match(self):
        each = [dict(network(seed).named_parameters()) for seed in range(3)]
        each[1]["extra"] = each[1].pop("1.bias")
        with pytest.raises(InvalidInput, match=r"stacked\[1\] must hold.*Missing: \['1.bias'\]; unknown: \['extra'\]"):
            cb.Samples(network(), each)

    def test_buffers_of_some_samples_only(self):
        net = batch_norm_net()
        each = [dict(net.named_parameters()) for _ in range(2)]
        each[1]["1.running_mean"] = net[1].running_mean
        with pytest.raises(InvalidInput, match=r"stacked\[1\] and stacked\[0\].*1.running_mean"):
            cb.Samples(net, each)

    def test_shapes_that_do_not_match(self):
        each = [dict(network(seed).named_parameters()) for seed in range(3)]
        each[2]["1.bias"] = torch.zeros(7)
        with pytest.raises(InvalidInput, match=r"stacked\[2\]\['1.bias'\] has shape \(7,\).*\(5,\)"):
            cb.Samples(network(), each)

    @pytest.mark.parametrize("given", [network(), [network(), network(1)]], ids=["module", "modules"])
    def test_modules_in_the_place_of_parameters(self, given):
        with pytest.raises(InvalidInput, match=r"named_parameters.*from_modules"):
            cb.Samples(network(), given)

    def test_one_networks_parameters_in_the_place_of_stacked_ones(self):
        with pytest.raises(InvalidInput, match=r"same leading dimension.*Point\(net\)"):
            cb.Samples(network(), dict(network().named_parameters()))

    @pytest.mark.parametrize("given", [None, 3, "weights", torch.zeros(3)])
    def test_what_is_no_dictionary(self, given):
        with pytest.raises(InvalidInput, match="by name"):
            cb.Samples(network(), given)

    def test_a_number_for_all_standard_deviations(self):
        with pytest.raises(InvalidInput, match="std must hold"):
            cb.DiagonalGaussian(network(), dict(network().named_parameters()), 0.1)

    def test_no_samples(self):
        with pytest.raises(InvalidInput, match="at least one"):
            cb.Samples(network(), [])

    def test_one_module_in_the_place_of_several(self):
        with pytest.raises(InvalidInput, match=r"Point\(net\)"):
            cb.Samples.from_modules(network())
