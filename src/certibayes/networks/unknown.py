"""What has no entry, where it stands, and what to write in its place."""

from __future__ import annotations

import torch
from torch import fx, nn

from certibayes.errors import UnsupportedLayer
from certibayes.networks import lowering
from certibayes.networks._assembly import is_shape_arithmetic, output_of, require_one_tensor
from certibayes.networks._recording import made_of_weights, place_of

_RECURRENT = (
    "gates multiply activations with each other, which has no rules; convolutions over time do "
    "(nn.Conv1d on x.transpose(1, 2), padded on the left by F.pad)"
)
_ATTENTION = (
    "attention multiplies activations with each other, which has no rules; an MLP over the tokens does, "
    "as in nn.Linear(tokens, tokens) on x.transpose(1, 2)"
)
_NORM = "dividing by a norm of activations has no rules; nn.RMSNorm and nn.LayerNorm do, for training anew"
_SQUARE = "only constants multiply activations; for training anew, F.softplus, F.silu and F.relu have rules"
_RANDOM = "the network answers at random. Switch it off in eval mode, by `if self.training:`"
_MAXIMUM = (
    "of two activations torch.stack([a, b], 1).amax(1) is the same and has rules; of an activation and a number "
    "x.clamp(min=number), or F.relu(x) for 0"
)

ADVICE: dict[str, str] = {
    "mish": "nn.SiLU and nn.GELU are as smooth and have rules, for training anew",
    "softsign": "nn.Tanh has rules, for training anew; CONTRIBUTING.md adds this very layer as its example",
    "tanhshrink": "x - torch.tanh(x) is the same and has rules",
    "softshrink": "F.relu(x - lambd) - F.relu(-x - lambd) is the same and has rules",
    "abs": "F.relu(x) + F.relu(-x) is the same and has rules",
    "where": "x if x > 0 else slope * x is F.leaky_relu(x, slope); other choices by value have no rules",
    "maximum": _MAXIMUM,
    "minimum": "-torch.stack([-a, -b], 1).amax(1) is the same and has rules, and x.clamp(max=number) for a number",
    "addmm": "x @ weight + bias is the same and has rules",
    "sin": "nn.Tanh and nn.GELU have rules, for training anew", "cos": "nn.Tanh and nn.GELU have rules",
    "gt": "choices by value have no rules, but x * (x > 0) is F.relu(x)",
    "glu": "it multiplies activations with each other, which has no rules",
    "bilinear": "it multiplies activations with each other, which has no rules",
    "lstm": _RECURRENT, "gru": _RECURRENT, "rnn": _RECURRENT,
    "multiheadattention": _ATTENTION, "transformerencoder": _ATTENTION, "transformerencoderlayer": _ATTENTION,
    "scaled_dot_product_attention": _ATTENTION, "bmm": _ATTENTION,
    "normalize": _NORM, "norm": _NORM, "cosine_similarity": _NORM, "localresponsenorm": _NORM, "rsqrt": _NORM,
    "pow": _SQUARE, "square": _SQUARE, "exp": _SQUARE, "sqrt": _SQUARE, "cdist": _SQUARE,
    "embedding": "inputs are numbers that may change a little, and an index is none; certify from the vectors on",
    "conv3d": "only Conv1d and Conv2d have rules",
    "unfold": "for patches that do not overlap nn.Conv2d(channels, features, kernel_size=p, stride=p) is the same",
    "log1p": "transform the inputs once, before the network, and say radii in the new units",
    "log": "transform the inputs once, before the network, and say radii in the new units",
    "randn_like": _RANDOM, "rand_like": _RANDOM, "bernoulli": _RANDOM,
    "softmax": "only at the end of a network, over its classes, is a softmax left off; elsewhere it has no rules. The "
    "mean of the softmax of several networks is certibayes.Samples.from_modules([...])",
    "t": "x @ weight.t() has rules; the dimension of the batch of an activation must stay the first",
}  # fmt: skip
"""What helps, by the name of a layer or function in lower case."""


def supported_layers() -> tuple[str, ...]:
    """Names of the module types and functions that can be traced."""
    names = {kind.__name__ for kind in lowering.modules}
    names |= {f if isinstance(f, str) else getattr(f, "__name__", str(f)) for f in lowering.functions}
    return tuple(sorted(names))


def _unknown_calls(traced: fx.GraphModule) -> dict[fx.Node, str]:
    """Names of the layers and functions in ``traced`` that have no entry, by call."""
    unknown: dict[fx.Node, str] = {}
    weights = made_of_weights(traced)
    for node in traced.graph.nodes:
        if node in weights:
            continue  # whether they can be used is up to the layer that reads them
        if node.op == "call_module":
            leaf = traced.get_submodule(str(node.target))
            if type(leaf) not in lowering.modules:
                unknown[node] = type(leaf).__name__
        elif (
            node.op in ("call_function", "call_method")
            and not is_shape_arithmetic(node)
            and node.target not in lowering.functions
        ):
            unknown[node] = getattr(node.target, "__name__", str(node.target))
    return unknown


def _with_place(call: fx.Node, name: str) -> str:
    place = f"at {call.target!r}" if call.op == "call_module" else place_of(call)
    return f"{name} ({place})" if place else name


def require_known_calls(traced: fx.GraphModule) -> None:
    """Raise unless every layer and function has an entry; the error names those that have none."""
    unknown = _unknown_calls(traced)
    if not unknown:
        return
    last = output_of(traced)
    if not isinstance(last, fx.Node):
        require_one_tensor(last)
    if last.target in (torch.log, "log"):
        last = last.args[0]
    name = unknown.get(last, "")
    if name.lower().replace("_", "") in ("softmax", "logsoftmax"):
        raise UnsupportedLayer(
            f"the network ends in {_with_place(last, name)}, but not over its classes alone, or something else reads "
            "it. A network returns logits, so leave the softmax off: the likelihood and the predictor apply it."
        )
    named = dict.fromkeys(_with_place(call, name) for call, name in unknown.items())
    hints = {name: ADVICE[name.lower()] for name in unknown.values() if name.lower() in ADVICE}
    advice = "".join(f" {name}: {hint}." for name, hint in hints.items())
    layers = sorted(kind.__name__ for kind in lowering.modules if issubclass(kind, nn.Module))
    raise UnsupportedLayer(
        f"no rules for: {', '.join(named)}.{advice} Supported: {', '.join(layers)}, and the functions that do the same "
        "(print(certibayes.bounds.support_table()) shows all). To add a layer, register it with "
        "certibayes.networks.lower_module (or lower_function) and give its bounds with certibayes.bounds.register; "
        "CONTRIBUTING.md has a skeleton."
    )
