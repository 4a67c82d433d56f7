"""What ``fit`` refuses, and in which words."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import certibayes as cb
from certibayes.errors import InvalidInput, UnsupportedLayer

from .cases import (
    LIKELIHOODS,
    SIZE,
    Endless,
    Mapped,
    classes,
    fit,
    inputs,
    network,
)


class Softsign(nn.Module):
    def forward(self, x):
        return torch.nn.functional.softsign(x)


class TestRefused:
    def refuse(self, message=None, error=InvalidInput, **settings):
        with pytest.raises(error, match=message):
            fit(**settings)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_inputs_that_are_not_numbers(self, bad):
        x = inputs()
        x[3, 1] = bad
        self.refuse("training inputs hold NaN", train=(x, classes()))

    def test_targets_that_are_not_numbers(self):
        y = inputs()[:, :3].clone()
        y[0, 0] = math.nan
        self.refuse("training targets hold NaN", train=(inputs(), y), likelihood=LIKELIHOODS["regression"])

    @pytest.mark.parametrize("label", [-1, 3])
    def test_labels_out_of_range(self, label):
        y = classes()
        y[5] = label
        self.refuse("3 classes", train=(inputs(), y))

    def test_float_labels(self):
        self.refuse("integers", train=(inputs(), classes().float()))

    def test_inputs_outside_the_domain(self):
        self.refuse("domain", train=(inputs() * 255, classes()), likelihood=LIKELIHOODS["ibp"])

    def test_regression_targets_without_their_dimension(self):
        self.refuse("Reshape", train=(inputs(), inputs()[:, 0]), likelihood=LIKELIHOODS["regression"])

    @pytest.mark.parametrize("epochs", [0, -1])
    def test_no_epochs(self, epochs):
        self.refuse("epochs", epochs=epochs)

    @pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
    def test_temperatures(self, temperature):
        self.refuse("temperature", temperature=temperature)

    @pytest.mark.parametrize("batch_size", [0, -3])
    def test_batch_sizes(self, batch_size):
        self.refuse("batch_size", batch_size=batch_size)

    def test_no_data(self):
        self.refuse("at least 1, got 0", train=(inputs()[:0], classes()[:0]))

    def test_lengths_that_differ(self):
        self.refuse("24 training inputs but 23 targets", train=(inputs(), classes()[:-1]))

    @pytest.mark.parametrize(
        "train", [None, "digits", [inputs()] * 3, (inputs(),)], ids=["none", "name", "list", "one"]
    )
    def test_things_that_are_not_data(self, train):
        with pytest.raises(InvalidInput, match="pair of tensors"):
            cb.fit(network(), train, algorithm=cb.MAP(), progress=False)

    def test_a_layer_without_rules(self):
        net = nn.Sequential(nn.Linear(4, 6), nn.Softsign(), nn.Linear(6, 3))
        self.refuse("Softsign", error=UnsupportedLayer, net=net)

    def test_a_function_without_rules(self):
        net = nn.Sequential(nn.Linear(4, 6), Softsign(), nn.Linear(6, 3))
        self.refuse("softsign", error=UnsupportedLayer, net=net)

    def test_a_data_set_without_a_length(self):
        self.refuse("no length", train=DataLoader(Endless(), batch_size=4))

    def test_a_loader_without_batches(self):
        self.refuse("no batches", train=DataLoader(Mapped(), batch_size=100, drop_last=True))

    def test_inputs_of_another_shape(self):
        self.refuse("shape", train=(torch.rand(SIZE, 5), classes()))

    def test_inputs_of_another_precision(self):
        """Taken and converted, or refused with a hint; not a matrix product error."""
        try:
            fit(train=(inputs().double(), classes()))
        except InvalidInput:
            return

    def test_uint8_labels(self):
        """As they come out of an image file."""
        try:
            fit(train=(inputs(), classes().to(torch.uint8)))
        except InvalidInput:
            return

    def test_lengths_that_differ_with_a_validation_fraction(self):
        self.refuse(train=(inputs(), classes()[:-5]), validation=0.5)

    @pytest.mark.parametrize("settings", [{"batch_size": 0}, {"train": Mapped(0)}], ids=["batch size", "empty"])
    def test_data_sets_are_checked_like_tensors(self, settings):
        self.refuse(**{"train": Mapped(), **settings})

    @pytest.mark.parametrize("kind", [cb.VOGN, cb.MAP, cb.HMC])
    def test_an_algorithm_that_is_a_class(self, kind):
        self.refuse(rf"the class {kind.__name__}; pass an instance: {kind.__name__}\(\)", algorithm=kind)

    @pytest.mark.parametrize("algorithm", [None, "no such thing", torch.optim.Adam, 3])
    def test_an_algorithm_that_is_none(self, algorithm):
        self.refuse(r"algorithm must be a certibayes Algorithm such as VOGN\(\)", algorithm=algorithm)

    @pytest.mark.parametrize(
        ("name", "kind"), [("likelihood", cb.Categorical), ("prior", cb.GaussianPrior), ("schedule", cb.Schedule)]
    )
    def test_other_settings_that_are_classes(self, name, kind):
        self.refuse(rf"{name} is the class.*{kind.__name__}\(\)", **{name: kind})

    def test_a_network_without_parameters(self):
        self.refuse(
            "no parameters.*make them nn.Parameter", net=nn.Sequential(nn.Tanh()), train=(inputs()[:, :3], classes())
        )

    def test_a_network_without_weights(self):
        self.refuse("without weights", net=fit(algorithm=cb.VOGN()).network)

    @pytest.mark.parametrize("net", [nn.Linear, torch.relu, None], ids=["class", "function", "none"])
    def test_networks_that_are_no_modules(self, net):
        with pytest.raises(InvalidInput, match=r"nn\.Module"):
            cb.fit(net, (inputs(), classes()), algorithm=cb.MAP(), progress=False)

    def test_data_that_are_no_batch(self):
        self.refuse(r"shape \(N, \.\.\.\)", train=(torch.tensor(1.0), torch.tensor(1)))

    def test_rows_of_different_length(self):
        self.refuse("training inputs cannot be read", train=([[1.0, 2.0], [3.0]], [0, 1]))

    @pytest.mark.parametrize("validation", [(inputs(),), [inputs()] * 3, "some"], ids=["one", "list", "word"])
    def test_validation_that_is_no_pair(self, validation):
        self.refuse("pair", validation=validation)


class LogSoftmaxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return nn.functional.log_softmax(self.layer(x), dim=-1)


class SoftmaxMethod(LogSoftmaxHead):
    def forward(self, x):
        return self.layer(x).softmax(-1)


class TestWordsForSlips:
    """Each message says what was wrong and what to do."""

    def refuse(self, *words, error=InvalidInput, **settings):
        with pytest.raises(error) as caught:
            fit(**settings)
        for word in words:
            assert word in str(caught.value)

    @pytest.mark.parametrize(
        "net",
        [
            nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)),
            nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)),
            LogSoftmaxHead(),
            SoftmaxMethod(),
        ],
        ids=["softmax", "log softmax", "function", "method"],
    )
    def test_a_softmax_at_the_end(self, net):
        """It is left off, which is said, and the same is trained as without it."""
        with pytest.warns(UserWarning, match=r"left off.*the likelihood and the predictor apply.*net\[:-1\]"):
            posterior = fit(net=net)
        assert posterior.graph.head in ("softmax", "log_softmax")
        linear = net[0] if isinstance(net, nn.Sequential) else net.layer
        plain = fit(net=nn.Sequential(linear))
        assert torch.equal(posterior.predictor()(inputs()), plain.predictor()(inputs()))

    def test_a_softmax_in_the_middle_is_a_layer_without_rules(self):
        net = nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1), nn.Linear(6, 3))
        self.refuse("no rules for: Softmax", error=UnsupportedLayer, net=net)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
    def test_one_hot_labels(self, dtype):
        one_hot = nn.functional.one_hot(classes(), 3).to(dtype)
        self.refuse("training targets have shape (24, 3)", "y.argmax(-1)", train=(inputs(), one_hot))
        self.refuse("validation targets", "y.argmax(-1)", validation=(inputs(), one_hot))

    def test_labels_in_a_column(self):
        self.refuse("(24, 1)", "y.squeeze(-1)", train=(inputs(), classes()[:, None]))

    def test_images_of_bytes(self):
        self.refuse("torch.uint8", "x / 255", train=((inputs() * 255).to(torch.uint8), classes()))

    def test_lengths_that_differ(self):
        self.refuse("24 training inputs but 20 targets", "Each input needs", train=(inputs(), classes()[:20]))
        self.refuse("24 validation inputs but 20 targets", validation=(inputs(), classes()[:20]))

    @pytest.mark.parametrize("name", ["epochs", "batch_size", "seed"])
    @pytest.mark.parametrize("value", ["10", 2.5, None, True, [3]])
    def test_numbers_that_are_not_whole(self, name, value):
        self.refuse(f"{name} must be a whole number, got {value!r}", **{name: value})

    @pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
    def test_seeds_that_torch_does_not_take(self, seed):
        self.refuse("seed must lie between", seed=seed)

    @pytest.mark.parametrize("device", ["gpu", "cuda:99", 2.5, "nowhere"])
    def test_devices(self, device):
        self.refuse("device", "Available: cpu", device=device)

    @pytest.mark.parametrize("progress", [None, 1, "bar"])
    def test_progress(self, progress):
        self.refuse("progress must be True for a bar, False for none, or a function", progress=progress)

    @pytest.mark.parametrize("callbacks", [print, 3, [3]])
    def test_callbacks(self, callbacks):
        self.refuse("callbacks is a list of functions", callbacks=callbacks)

    def test_checkpoints(self):
        self.refuse("checkpoint must be the path", checkpoint=3)
        self.refuse("checkpoint_every must be a number of seconds", checkpoint_every="1 min")

    def test_a_precision_of_no_such_name(self):
        self.refuse('precision is "highest", or for faster', precision="tf32")

    def test_a_data_set_by_name(self):
        self.refuse("certibayes.data.load('digits')", train="digits")

    @pytest.mark.parametrize("likelihood", ["ibp", "pgd", "crown-ibp"])
    def test_a_robust_likelihood_by_name_needs_a_radius(self, likelihood):
        self.refuse("cb.RobustCategorical(eps=0.1", likelihood=likelihood)

    def test_a_likelihood_of_no_such_name(self):
        self.refuse("crown-ibp", likelihood="crown_ipb")
