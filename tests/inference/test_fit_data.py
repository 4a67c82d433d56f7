"""What data ``fit`` takes, and the domain that comes with them."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.networks import trace

from .cases import (
    BATCH_SIZE,
    LIKELIHOODS,
    SIZE,
    Mapped,
    assert_same_posterior,
    classes,
    differ,
    fit,
    inputs,
    network,
)


class Augmented(Mapped):
    """With noise from torch's global generator, as augmentations take it."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.rand(4), y


class TestData:
    def test_a_tensor_dataset_is_its_tensors(self):
        assert_same_posterior(fit(train=TensorDataset(inputs(), classes())), fit(train=(inputs(), classes())))

    @pytest.mark.parametrize(
        "make",
        [
            Mapped,
            lambda: DataLoader(Mapped(), batch_size=BATCH_SIZE),
            lambda: DataLoader(Mapped(), batch_size=BATCH_SIZE, shuffle=True, generator=torch.Generator()),
        ],
        ids=["data set", "loader", "shuffled loader"],
    )
    def test_loaders_and_data_sets_train(self, make):
        history = fit(train=make(), epochs=20).metadata["history"]
        assert history[-1]["loss"] < history[0]["loss"]

    @pytest.mark.parametrize("data", [Mapped, Augmented], ids=["plain", "augmented"])
    def test_a_shuffled_loader_depends_on_the_seed_alone(self, data):
        def make():
            return DataLoader(data(), batch_size=BATCH_SIZE, shuffle=True)

        torch.manual_seed(1)
        one = fit(train=make(), seed=5)
        torch.manual_seed(2)
        assert_same_posterior(fit(train=make(), seed=5), one)
        assert differ(fit(train=make(), seed=6), one)

    def test_every_epoch_has_another_order(self):
        seen = []

        class Watching(Mapped):
            def __getitem__(self, index):
                seen.append(index)
                return super().__getitem__(index)

        loader = DataLoader(Watching(), batch_size=BATCH_SIZE, shuffle=True)
        fit(train=loader, epochs=2)
        # The last two epochs; before them come the examples that fit looks at first.
        first, second = seen[-2 * SIZE : -SIZE], seen[-SIZE:]
        assert sorted(first) == sorted(second) == list(range(SIZE))
        assert first != second

    def test_data_smaller_than_a_batch_are_one_batch(self):
        posterior = fit(batch_size=1000, epochs=2)
        assert posterior.metadata["data"]["steps"] == 1

    def test_images_are_flattened_by_the_network(self):
        images = inputs().reshape(SIZE, 1, 2, 2)
        torch.testing.assert_close(fit(train=(images, classes())).params, fit().params)

    def test_a_traced_network_is_as_good_as_a_module(self):
        assert_same_posterior(fit(net=trace(network(), inputs())), fit())

    def test_float64_networks_are_trained_in_float64(self):
        posterior = fit(net=network().double(), train=(inputs().double(), classes()))
        assert posterior.params["1.weight"].dtype == torch.float64

    def test_int32_labels(self):
        assert_same_posterior(fit(train=(inputs(), classes().int())), fit())

    def test_a_data_set_is_its_training_split_and_tells_the_domain(self):
        posterior = fit(train=data_set())
        assert_same_posterior(posterior, fit())
        assert posterior.domain == posterior.predictor().domain == (0.0, 1.0)
        assert posterior.metadata["domain"] == [0.0, 1.0]

    @pytest.mark.parametrize(
        "train",
        [
            (inputs().numpy(), classes().numpy()),
            (inputs().numpy().astype("float64"), classes().numpy().astype("uint8")),
            (inputs().tolist(), classes().tolist()),
            [inputs(), classes()],
        ],
        ids=["arrays", "doubles and bytes", "lists", "a list of two"],
    )
    def test_arrays_and_lists_are_tensors(self, train):
        assert_same_posterior(fit(train=train), fit())
        assert_same_posterior(fit(validation=train), fit(validation=(inputs(), classes())))

    def test_the_device_may_be_named(self):
        assert_same_posterior(fit(device="cpu"), fit())
        assert_same_posterior(fit(device=torch.device("cpu")), fit())

    def test_n_is_what_a_sampler_draws(self):
        from torch.utils.data import SubsetRandomSampler

        subset = DataLoader(Mapped(), batch_size=4, sampler=SubsetRandomSampler(range(8)))
        assert fit(train=subset).metadata["data"]["size"] == 8

    def test_a_sampler_with_its_own_generator_is_seeded_too(self):
        from torch.utils.data import RandomSampler

        sampler = RandomSampler(Mapped(), generator=torch.Generator())
        loader = DataLoader(Mapped(), batch_size=BATCH_SIZE, sampler=sampler)
        assert_same_posterior(fit(train=loader), fit(train=loader))


def data_set(domain=(0.0, 1.0)):
    split = cb.data.Split(inputs(), classes())
    empty = cb.data.Split(inputs()[:0], classes()[:0])
    return cb.data.DataSet("tiny", split, empty, ("a", "b", "c"), domain)


class TestDomain:
    def test_it_is_the_likelihoods(self):
        assert fit(LIKELIHOODS["ibp"]).domain == (0.0, 1.0)
        wide = cb.RobustCategorical(cb.TwoPoint(0.1), domain=(-1.0, 2.0))
        assert fit(wide, train=data_set()).domain == (-1.0, 2.0)

    def test_where_that_has_none_it_is_the_data_sets(self):
        boundless = cb.RobustCategorical(cb.TwoPoint(0.1), domain=None)
        assert fit(boundless, train=data_set((0.0, 3.0))).domain == (0.0, 3.0)

    def test_otherwise_there_is_none(self):
        assert fit().domain is fit(train=data_set(None)).domain is None


@pytest.mark.parametrize("convert", [lambda t: t.numpy(), lambda t: t.tolist()], ids=["numpy", "lists"])
@pytest.mark.parametrize("validation", [None, 0.25, "own"])
def test_arrays_and_lists_are_as_good_as_tensors(convert, validation):
    x, y = inputs(), classes()
    own = (convert(x), convert(y)), (x, y)
    found, expected = (fit(train=pair, validation=pair if validation == "own" else validation) for pair in own)
    assert_same_posterior(found, expected)
    assert found.metadata == expected.metadata


def test_a_loader_may_yield_arrays():
    pairs = list(zip(inputs().numpy(), classes().numpy(), strict=True))

    def collate(rows):
        return np.stack([x for x, _ in rows]), np.stack([y for _, y in rows])

    loader = DataLoader(pairs, BATCH_SIZE, collate_fn=collate)
    assert_same_posterior(fit(train=loader), fit(train=DataLoader(pairs, BATCH_SIZE)))
