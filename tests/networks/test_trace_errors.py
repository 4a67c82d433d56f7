"""What cannot be traced is refused with an error that names it and says what to do."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import certibayes as cb
from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks import Normalize, trace

from ..strategies import Functional

VECTOR, IMAGE = torch.full((2, 6), 0.3), torch.full((2, 3, 8, 8), 0.3)


def _net(forward, **parts) -> nn.Module:
    return Functional(forward, layer=nn.Linear(6, 3), **parts)


def _two_inputs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x, y):
            return self.layer(x + y)

    return Net()


def _changed(name, value):
    net = _net(lambda self, x: self.norm(self.layer(x)), norm=nn.BatchNorm1d(3))
    net.state_dict()[name].fill_(value)
    return net


def _without_statistics():
    norm = nn.BatchNorm1d(3)
    norm.running_mean = norm.running_var = None
    return nn.Sequential(nn.Linear(6, 3), norm)


def _with_a_stale_weight():
    net = _net(lambda self, x: functional.linear(x, self.doubled))
    net.doubled = net.layer.weight * 2
    return net


def _branches(self, x):
    return self.layer(x) if x.sum() > 0 else self.layer(-x)


REFUSED = {
    "instance norm as a function": (
        lambda: Functional(lambda self, x: self.last(functional.instance_norm(x).flatten(1)), last=nn.Linear(192, 3)),
        IMAGE,
        "use nn.InstanceNorm2d",
    ),
    "indices of a maximum of sequences": (
        lambda: Functional(lambda self, x: self.pool(x.flatten(2))[0], pool=nn.MaxPool1d(2, return_indices=True)),
        IMAGE,
        "return_indices=True",
    ),
    "indices of an adaptive maximum": (
        lambda: Functional(lambda self, x: self.pool(x)[0], pool=nn.AdaptiveMaxPool2d(2, return_indices=True)),
        IMAGE,
        "return_indices=True",
    ),
    "vectors pooled as sequences": (lambda: nn.Sequential(nn.MaxPool1d(2), nn.Linear(3, 3)), VECTOR, "reads shape"),
    "an index that depends on the batch": (
        lambda: _net(lambda self, x: self.layer(x[:, : x.size(0) + 4])),
        VECTOR,
        "depends on the input or on the batch size",
    ),
    "indices that are made of parameters": (
        lambda: _net(lambda self, x: self.layer(x.index_select(1, self.layer.weight.argmax(1)).repeat(1, 2))),
        VECTOR,
        "a buffer of integers",
    ),
    "an index that is made of parameters": (
        lambda: _net(lambda self, x: self.layer(x[:, self.layer.weight.argmax(1)].repeat(1, 2))),
        VECTOR,
        "for one list of fixed integers|only constants can be used",
    ),
    "inputs of the batch turned round": (
        lambda: _net(lambda self, x: self.layer(x.roll(1, 0))),
        VECTOR,
        "along the batch; choose another dimension",
    ),
    "a slope that depends on the batch": (
        lambda: _net(lambda self, x: functional.leaky_relu(self.layer(x), x.size(0) / 10)),
        VECTOR,
        "numbers in them constants",
    ),
    "a factor that depends on the batch": (
        lambda: _net(lambda self, x: self.layer(x) * x.size(0)),
        VECTOR,
        "depends on the size of the batch",
    ),
    "Mish": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Mish()), VECTOR, "Mish"),
    "mish": (lambda: _net(lambda self, x: functional.mish(self.layer(x))), VECTOR, "mish"),
    "negative alpha": (lambda: nn.Sequential(nn.Linear(6, 3), nn.ELU(-1.0)), VECTOR, "positive alpha"),
    "low threshold": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Softplus(1.0, 2.0)),
        VECTOR,
        "threshold of at least 16",
    ),
    "clamp by an activation": (
        lambda: _net(lambda self, x: self.layer(x).clamp(min=self.layer(x))),
        VECTOR,
        "must be numbers",
    ),
    "clamp upside down": (lambda: _net(lambda self, x: self.layer(x).clamp(1.0, -1.0)), VECTOR, "nothing between"),
    "maximum with a constant": (
        lambda: _net(lambda self, x: torch.max(self.layer(x), torch.tensor(0.0))),
        VECTOR,
        r"x.clamp\(min=number\)",
    ),
    "indices of a maximum": (
        lambda: _net(lambda self, x: self.layer(x).max(1, keepdim=True)[1].float()),
        VECTOR,
        "float|indices|precision",
    ),
    "uneven adaptive maximum": (
        lambda: nn.Sequential(nn.AdaptiveMaxPool2d(5), nn.Flatten()),
        IMAGE,
        "does not divide evenly",
    ),
    "mean over the batch": (
        lambda: _net(lambda self, x: self.layer(x).mean(0, keepdim=True)),
        VECTOR,
        "first dimension",
    ),
    "attention": (
        lambda: _net(lambda self, x: (self.layer(x)[:, :, None] @ self.layer(x)[:, None]).flatten(1)),
        VECTOR,
        "two activations, as in attention",
    ),
    "softmax over the batch": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(0)), VECTOR, "over its classes alone"),
    "softmax that is read twice": (
        lambda: _net(lambda self, x: torch.log(self.layer(x).softmax(1) + self.layer(x).softmax(1))),
        VECTOR,
        "softmax",
    ),
    "transpose": (lambda: _net(lambda self, x: self.layer(x.transpose(0, 1))), VECTOR, "transpose"),
    "a part of the batch": (lambda: _net(lambda self, x: self.layer(x)[0]), VECTOR, "first dimension"),
    "an index of a list and None": (
        lambda: _net(lambda self, x: self.layer(x)[:, None, [2, 0, 1]].flatten(1)),
        VECTOR,
        "list or a tensor",
    ),
    "a concatenated batch": (
        lambda: _net(lambda self, x: torch.cat([self.layer(x)] * 2).chunk(2)[0]),
        VECTOR,
        "first dimension",
    ),
    "a chunked batch": (
        lambda: _net(lambda self, x: torch.cat(self.layer(x).chunk(2), 0)),
        VECTOR,
        "all at once|batch",
    ),
    "parts taken all at once": (
        lambda: _net(lambda self, x: torch.cat(self.layer(x).chunk(3, 1), 1)),
        VECTOR,
        "Give each a name",
    ),
    "interpolation": (
        lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Flatten()),
        IMAGE,
        "'bilinear'.*nearest",
    ),
    "half an upsampling": (lambda: nn.Sequential(nn.Upsample(scale_factor=1.5), nn.Flatten()), IMAGE, "whole factors"),
    "transposed attribute": (lambda: _net(lambda self, x: self.layer(x).T), VECTOR, "first dimension"),
    "branch on data": (lambda: _net(_branches), VECTOR, "cannot be traced"),
    "several inputs": (_two_inputs, VECTOR, "needs y besides its input.*default"),
    "product of activations": (lambda: _net(lambda self, x: self.layer(x) * self.layer(x)), VECTOR, "product of two"),
    "square": (lambda: _net(lambda self, x: self.layer(x) ** 2), VECTOR, "pow"),
    "division by an activation": (lambda: _net(lambda self, x: 1 / self.layer(x)), VECTOR, "divi"),
    "computed weights": (
        lambda: _net(lambda self, x: functional.linear(x, self.matrix * 2), matrix=torch.randn(3, 6)),
        VECTOR,
        "",
    ),
    "weights that depend on the input": (
        lambda: _net(lambda self, x: functional.linear(x, self.layer(x).relu(), None)),
        torch.full((6, 6), 0.3),
        "",
    ),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)),
        VECTOR,
        "running statistics",
    ),
    "batch_norm in training": (
        lambda: _net(lambda self, x: functional.batch_norm(self.layer(x), None, None, training=True)),
        VECTOR,
        "running statistics",
    ),
    "dropout always on": (lambda: _net(lambda self, x: functional.dropout(self.layer(x))), VECTOR, "dropout"),
    "max pool with indices": (
        lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.MaxPool2d(2, return_indices=True)),
        IMAGE,
        "",
    ),
    "image as output": (lambda: nn.Sequential(nn.Conv2d(3, 2, 3)), IMAGE, r"\(batch, outputs\)"),
    "two outputs": (lambda: _net(lambda self, x: (self.layer(x), x)), VECTOR, "one tensor"),
    "nothing computed": (lambda: nn.Identity(), VECTOR, "at least one layer"),
    "batch flattened": (
        lambda: Functional(lambda self, x: self.layer(x.view(-1, 3)).view(-1, 6), layer=nn.Linear(3, 3)),
        VECTOR,
        "first dimension",
    ),
    "batch mixed by a broadcast": (
        lambda: _net(lambda self, x: (self.layer(x) + self.offset).flatten(1), offset=torch.randn(1, 1, 3)),
        VECTOR,
        "first dimension",
    ),
    "inputs that are numbers": (lambda: nn.Linear(1, 3), torch.rand(5), r"vectors of one number"),
    "scaled sum": (
        lambda: _net(lambda self, x: torch.add(self.layer(x), self.layer(x), alpha=2)),
        VECTOR,
        r"write x \+ 2 \* y",
    ),
    "negative slope": (lambda: nn.Sequential(nn.Linear(6, 3), nn.LeakyReLU(-0.5)), VECTOR, "not monotone"),
    "NaN weights": (lambda: _changed("layer.weight", float("nan")), VECTOR, "'layer.weight' hold NaN"),
    "infinite weights": (lambda: _changed("layer.bias", float("inf")), VECTOR, "'layer.bias' hold NaN or infinite"),
    "negative variance": (lambda: _changed("norm.running_var", -1.0), VECTOR, "'norm.running_var'.* positive"),
    "division by zero": (
        lambda: _net(lambda self, x: self.layer(x) / self.divisor, divisor=torch.tensor([1.0, 0.0, 2.0])),
        VECTOR,
        "divides by 'divisor'",
    ),
    "batch norm whose statistics were taken away": (_without_statistics, VECTOR, "running statistics"),
    "two precisions": (
        lambda: _net(lambda self, x: self.layer(x) * torch.ones(3, dtype=torch.float64)),
        VECTOR,
        "one precision",
    ),
    "a batch of one that cannot be run": (
        lambda: Functional(
            lambda self, x: self.norm(self.pool(x).squeeze()), pool=nn.AvgPool2d(8), norm=nn.BatchNorm1d(3)
        ),
        IMAGE,
        r"not on one.*flatten\(1\)",
    ),
    "no module": (lambda: torch.relu, VECTOR, "nn.Module"),
    "a class": (lambda: nn.Linear, VECTOR, "make an instance"),
    "an empty example": (lambda: nn.Linear(6, 3), VECTOR[:0], "at least one input"),
    "an example that is no batch": (lambda: nn.Linear(6, 3), torch.tensor(1.0), "at least one input"),
    "an attribute that requires gradients": (_with_a_stale_weight, VECTOR, "detached"),
    "a scripted module": (lambda: torch.jit.script(nn.Linear(6, 3)), VECTOR, "module that it was made from"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    build, example, message = REFUSED[what]
    torch.manual_seed(0)
    module = build()
    with pytest.raises((UnsupportedLayer, InvalidInput), match=message or None):
        trace(module, example)
    support = cb.supports(module, example)
    assert not support
    assert "not supported" in str(support)


def test_the_error_names_the_layer_and_what_is_supported():
    net = nn.Sequential(nn.Linear(6, 4), nn.Mish(), nn.Linear(4, 4), nn.Softsign(), nn.Linear(4, 2))
    with pytest.raises(UnsupportedLayer) as caught:
        trace(net)
    message = str(caught.value)
    assert "Mish (at '1')" in message and "Softsign (at '3')" in message
    assert "Conv2d" in message and "MaxPool2d" in message
    assert "lower_module" in message and "bounds.register" in message


def test_an_unknown_input_shape_is_asked_for():
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 2))
    with pytest.raises(InvalidInput, match="input_shape"):
        trace(net)
    net.input_shape = (3, 8, 8)
    assert trace(net).graph.input_shape == (3, 8, 8)


def test_supports_checks_names_where_the_shape_is_unknown():
    assert cb.supports(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 2)))
    support = cb.supports(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Mish()))
    assert not support and "Mish" in support.reason


def test_supports_says_yes():
    support = cb.supports(nn.Sequential(nn.Linear(6, 3), nn.Tanh()))
    assert support and support.reason == "" and str(support) == "supported"


def test_a_wrong_input_shape_is_refused():
    graph = trace(nn.Linear(6, 3)).graph
    graph.require_input(torch.zeros(2, 6))
    with pytest.raises(InvalidInput, match=r"\(2, 7\).*\(6,\)"):
        graph.require_input(torch.zeros(2, 7))
    with pytest.raises(InvalidInput, match="batch dimension"):
        graph.require_input(torch.zeros(6))
    with pytest.raises(InvalidInput):
        graph.require_input(torch.zeros(()))


def test_a_network_that_flattens_first_takes_images():
    graph = cb.networks.mlp(16, [4], 2)
    graph = trace(graph).graph
    graph.require_input(torch.zeros(3, 1, 4, 4))
    with pytest.raises(InvalidInput):
        graph.require_input(torch.zeros(3, 1, 4, 5))


def _drops_the_result(self, x):
    hidden = self.layer(x)
    hidden.relu_()  # changes hidden itself, but its result is not used
    return hidden - 1.0


def _overwrites_what_is_added_later(self, x):
    hidden = self.layer(x)
    return functional.relu(hidden, inplace=True) + hidden


def _module_in_place(self, x):
    hidden = self.layer(x)
    return self.activation(hidden) + hidden


def _positional(self, x):
    hidden = self.layer(x)
    return functional.relu(hidden, True) + hidden


def _named_input(self, x):
    hidden = self.layer(x)
    return functional.relu(input=hidden, inplace=True) + hidden


def _through_dropout(self, x):
    hidden = self.layer(x)
    return self.activation(self.dropout(hidden)) + hidden  # in eval mode dropout returns its very input


def _through_flatten(self, x):
    hidden = self.layer(x)
    return self.activation(self.flatten(hidden)) + hidden


def _through_unsqueeze(self, x):
    hidden = self.layer(x)
    return torch.unsqueeze(hidden, 1).relu_().flatten(1) + hidden


def _through_view(self, x):
    hidden = self.layer(x)
    hidden.view(-1, 3).relu_()
    return hidden * 2.0


@pytest.mark.parametrize(
    "forward",
    [
        _drops_the_result,
        _overwrites_what_is_added_later,
        _module_in_place,
        _positional,
        _named_input,
        _through_dropout,
        _through_flatten,
        _through_unsqueeze,
        _through_view,
    ],
)
def test_in_place_operations_are_understood_or_refused(forward):
    """At the example every hidden unit is positive, so comparing graph and module there shows nothing."""
    net = _net(forward, activation=nn.ReLU(inplace=True), dropout=nn.Dropout(), flatten=nn.Flatten()).eval()
    with torch.no_grad():
        net.layer.weight.fill_(1.0)
        net.layer.bias.zero_()
    try:
        network = trace(net, torch.ones(1, 6))
    except UnsupportedLayer:
        return
    x = -torch.ones(1, 6)
    torch.testing.assert_close(network.graph.evaluate(network.params, x), net(x).detach())


@pytest.mark.parametrize("std", [0.0, -1.0, [1.0, 0.0], float("nan")])
def test_normalize_needs_a_positive_std(std):
    with pytest.raises(ValueError, match="positive"):
        Normalize(0.0, std)


def test_a_softmax_inside_is_a_layer_without_rules():
    with pytest.raises(UnsupportedLayer, match=r"no rules for: Softmax \(at '1'\)"):
        trace(nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1), nn.Linear(4, 3)), VECTOR)
