"""The digest follows the samples it names."""

import torch

import certibayes as cb


def test_a_change_in_place_is_seen():
    predictor = cb.Point(cb.networks.mlp(3, [4], 2)).predictor()
    before = predictor.digest
    assert predictor.digest == before
    predictor.samples_0.add_(1)
    assert predictor.digest != before


def test_it_is_known_in_inference_mode():
    with torch.inference_mode():
        predictor = cb.Point(cb.networks.mlp(3, [4], 2)).predictor()
        assert len(predictor.digest) == 64


def test_a_setting_that_has_no_bounds_is_reported_without_an_example():
    net = torch.nn.Sequential(torch.nn.Upsample(scale_factor=2, mode="bilinear"), torch.nn.Flatten())
    assert not cb.supports(net)
