"""Augmented training: the same images again after a resume, and only where images are trained on."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.data import RandomCrop, RandomFlip
from certibayes.errors import InvalidInput, RunExists
from certibayes.inference._augmented import AugmentedSource
from certibayes.inference._batches import Batch, Placement, TensorSource, source_of

from .cases import assert_same_posterior

AUGMENT = [RandomFlip(), RandomCrop(1)]
SIZE, BATCH_SIZE = 20, 8


def images():
    return torch.rand(SIZE, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def fit(**settings):
    settings = {
        "net": network(),
        "train": (images(), torch.arange(SIZE) % 3),
        "algorithm": cb.MAP(lr=0.01),
        "epochs": 3,
        "batch_size": BATCH_SIZE,
        "progress": False,
        "augment": AUGMENT,
        **settings,
    }
    return cb.fit(settings.pop("net"), settings.pop("train"), **settings)


def source(augment=AUGMENT):
    return AugmentedSource(TensorSource(Batch(images(), torch.arange(SIZE)), BATCH_SIZE), augment)


class TestSource:
    def test_a_batch_depends_on_seed_and_step_alone(self):
        """What is skipped changes nothing, and neither does what was drawn before."""
        whole = list(source().epoch(5))
        torch.manual_seed(1)
        for skip in range(len(whole) + 1):
            for found, expected in zip(source().epoch(5, skip), whole[skip:], strict=True):
                assert torch.equal(found.inputs, expected.inputs)
                assert torch.equal(found.targets, expected.targets)

    def test_epochs_and_steps_differ(self):
        plain = TensorSource(Batch(torch.rand(1, 1, 9, 9).expand(SIZE, -1, -1, -1), torch.arange(SIZE)), BATCH_SIZE)
        steps = [batch.inputs for seed in (1, 2) for batch in AugmentedSource(plain, AUGMENT).epoch(seed)]
        for i, one in enumerate(steps):
            assert not any(torch.equal(one, other) for other in steps[i + 1 :])
            assert len(one.unique(dim=0)) > 1  # and so do the images of one batch

    def test_targets_and_order_stay(self):
        plain = list(source().source.epoch(3))
        for found, expected in zip(source([RandomFlip()]).epoch(3), plain, strict=True):
            assert torch.equal(found.targets, expected.targets)
            assert torch.equal(found.inputs.sort(-1).values, expected.inputs.sort(-1).values)

    def test_everything_else_is_about_the_images_themselves(self):
        found, plain = source(), source().source
        assert found.size == SIZE and found.steps == plain.steps and found.data is not None
        assert torch.equal(torch.cat([batch.inputs for batch in found.everything()]), images())
        assert torch.equal(found.inputs(5), plain.inputs(5))
        assert torch.equal(found.example().inputs, images())
        assert found.fingerprint() == plain.fingerprint()


class TestFit:
    @pytest.mark.parametrize("algorithm", [cb.MAP(lr=0.01), cb.VOGN(lr=0.01)], ids=["map", "vogn"])
    @pytest.mark.parametrize("loader", [False, True], ids=["tensors", "loader"])
    def test_a_resumed_run_ends_with_the_same_bits(self, tmp_path, loader, algorithm):
        train = (images(), torch.arange(SIZE) % 3)
        settings = {"algorithm": algorithm, "likelihood": cb.RobustCategorical(eps=0.05)}

        def data():
            return DataLoader(TensorDataset(*train), BATCH_SIZE, shuffle=True) if loader else train

        expected = fit(train=data(), **settings)

        def stop(record):
            if record["epoch"] == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(train=data(), checkpoint=tmp_path, checkpoint_every=0, callbacks=[stop], **settings)
        assert_same_posterior(fit(train=data(), checkpoint=tmp_path, resume=True, **settings), expected)
        assert_same_posterior(fit(train=data(), **settings), expected)

    def test_it_makes_a_difference(self):
        plain, augmented = fit(augment=None).params, fit().params
        assert not all(torch.equal(plain[name], augmented[name]) for name in plain)

    def test_it_is_named_in_the_posterior(self):
        assert fit().metadata["augment"] == [{"name": "RandomFlip"}, {"name": "RandomCrop", "padding": 1, "fill": 0.0}]
        assert fit(augment="flip").metadata["augment"] == [{"name": "RandomFlip"}]
        assert "augment" not in fit(augment=None).metadata

    def test_the_number_of_examples_stays(self):
        seen = []

        class Watching(cb.MAP):
            def update(self, target, *arguments):
                seen.append(target.data_size)
                return super().update(target, *arguments)

        fit(algorithm=Watching(lr=0.01))
        assert set(seen) == {SIZE}

    def test_another_augmentation_is_another_run(self, tmp_path):
        fit(checkpoint=tmp_path)
        with pytest.raises(RunExists, match="augment"):
            fit(checkpoint=tmp_path, resume=True, augment="crop:1")

    def test_statistics_of_batch_norm_are_those_of_the_images(self):
        """With a rate of 0 the network stays, and so must its statistics, however images are augmented."""
        one, other = (fit(algorithm=cb.MAP(lr=0.0, optimizer="sgd"), augment=each) for each in (None, AUGMENT))
        assert one.buffers.keys() == other.buffers.keys()
        for name, tensor in one.buffers.items():
            assert torch.equal(tensor, other.buffers[name])

    def test_validation_is_about_the_images(self):
        held = (images(), torch.arange(SIZE) % 3)
        records = [
            fit(algorithm=cb.MAP(lr=0.0, optimizer="sgd"), augment=each, validation=held).metadata["history"][-1]
            for each in (None, AUGMENT)
        ]
        assert records[0]["validation_loss"] == records[1]["validation_loss"]
        assert records[0]["loss"] != records[1]["loss"]


class TestRefused:
    def test_all_data_at_once(self):
        with pytest.raises(InvalidInput, match=r"all training data in every step.*SGHMC\(\)"):
            fit(algorithm=cb.HMC())

    def test_inputs_that_are_no_images(self):
        x = images().flatten(1)
        with pytest.raises(InvalidInput, match=r"inputs have shape \(16,\).*nn.Flatten"):
            fit(net=cb.networks.mlp(16, [4], 3), train=(x, torch.arange(SIZE) % 3))

    def test_padding_outside_the_domain(self):
        with pytest.raises(
            InvalidInput, match=r"padding of RandomCrop\(padding=1, fill=-1.0\) lies outside the domain"
        ):
            fit(augment=RandomCrop(1, fill=-1.0), likelihood=cb.RobustCategorical(eps=0.05))
        fit(augment=RandomCrop(1, fill=-1.0), epochs=1)

    def test_what_is_no_augmentation(self):
        with pytest.raises(InvalidInput, match="there is no augmentation"):
            fit(augment="mirror")


def test_a_loader_is_augmented_too():
    data = TensorDataset(images(), torch.arange(SIZE))
    inner = source_of(DataLoader(data, BATCH_SIZE), 1, Placement(torch.device("cpu"), torch.float32))
    batches = list(AugmentedSource(inner, [RandomFlip()]).epoch(0))
    assert [len(batch.inputs) for batch in batches] == [8, 8, 4]
    assert torch.equal(torch.cat([b.inputs for b in batches]).sort(-1).values, images().sort(-1).values)
