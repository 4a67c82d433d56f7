"""What has no entry, where it stands, and what to write in its place."""

from __future__ import annotations

import torch
from torch import fx, nn

from certibayes.errors import UnsupportedLayer
from certibayes.networks import lowering
from certibayes.networks._assembly import output_of, require_one_tensor
from certibayes.networks._recording import made_of_weights, place_of
from certibayes.networks._sizes import is_shape_arithmetic

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
_SOFTMAX = (
    "only at the end of a network, over its classes, is a softmax left off; elsewhere it has no rules. The "
    "mean of the softmax of several networks is certibayes.Samples.from_modules([...])"
)
_QUANTIZED = "quantized layers round, which has no bounds; certify the float network that it was made from"
_JUMPS = "it jumps, or is flat, so that bounds are of no use; leave it out of the network that is certified"
_SPREAD = "dividing by a deviation of activations has rules as nn.LayerNorm, nn.GroupNorm and nn.RMSNorm alone"
_ORDER = "an order of values has no rules; x.amax(1) and x.amin(1) do"
_FILLED = (
    "tensors made inside forward have no rules. Zeros beside x are F.pad(x, (0, n)), x + 1 broadcasts, and what is "
    "fixed is made in __init__: self.register_buffer('grid', torch.arange(8.0))"
)
_CHOICE = "choices by value have no rules, but x * (x > 0) is F.relu(x), and bounds on x are x.clamp(min=0, max=1)"
_EXTREMUM = "of two activations torch.max(a, b) has rules, of an activation and a number x.clamp(min=number)"
_FIXED = "what is linear and fixed can be written as F.conv2d or x @ self.W with a buffer"

ADVICE: dict[str, str] = {
    "mish": "nn.SiLU and nn.GELU are as smooth and have rules, for training anew",
    "softsign": "nn.Tanh has rules, for training anew; CONTRIBUTING.md adds this very layer as its example",
    "tanhshrink": "x - torch.tanh(x) is the same and has rules",
    "softshrink": "F.relu(x - lambd) - F.relu(-x - lambd) is the same and has rules",
    "hardshrink": _JUMPS, "sign": _JUMPS, "round": _JUMPS, "floor": _JUMPS, "ceil": _JUMPS, "heaviside": _JUMPS,
    "floordiv": _JUMPS, "mod": _JUMPS, "fake_quantize_per_tensor_affine": _JUMPS,
    "erf": "x * 0.5 * (1 + torch.erf(x / math.sqrt(2))) is F.gelu(x)",
    "abs": "F.relu(x) + F.relu(-x) is the same and has rules",
    "where": "x if x > 0 else slope * x is F.leaky_relu(x, slope); other choices by value have no rules",
    "masked_fill": _CHOICE, "gt": _CHOICE, "lt": _CHOICE, "ge": _CHOICE, "le": _CHOICE,
    "fmax": _EXTREMUM, "fmin": _EXTREMUM,
    "sort": _ORDER, "topk": _ORDER, "argmax": _ORDER, "argsort": _ORDER, "median": _ORDER, "kthvalue": _ORDER,
    "cumsum": "x @ self.ones has rules, with self.register_buffer('ones', torch.ones(n, n).triu())",
    "diff": "x[:, 1:] - x[:, :-1] is the same and has rules",
    "lerp": "x + 0.3 * (y - x) is the same and has rules",
    "std": _SPREAD, "var": _SPREAD,
    "addmm": "x @ weight + bias is the same and has rules",
    "tensordot": "x @ weight is the same and has rules",
    "bilinear": "it multiplies activations with each other, which has no rules",
    "addcmul": "self.bias + self.scale * x is the same and has rules; a product of activations has none",
    "prod": "it multiplies activations with each other, which has no rules",
    "sin": "nn.Tanh and nn.GELU have rules, for training anew", "cos": "nn.Tanh and nn.GELU have rules",
    "glu": "it multiplies activations with each other, which has no rules",
    "lstm": _RECURRENT, "gru": _RECURRENT, "rnn": _RECURRENT,
    "lstmcell": _RECURRENT, "grucell": _RECURRENT, "rnncell": "torch.tanh(self.i(x) + self.h(h)) has rules",
    "multiheadattention": _ATTENTION, "transformerencoder": _ATTENTION, "transformerencoderlayer": _ATTENTION,
    "scaled_dot_product_attention": _ATTENTION, "bmm": _ATTENTION, "baddbmm": _ATTENTION,
    "normalize": _NORM, "norm": _NORM, "linalg_norm": _NORM, "cosine_similarity": _NORM, "localresponsenorm": _NORM,
    "rsqrt": _NORM,
    "pow": _SQUARE, "square": _SQUARE, "exp": _SQUARE, "sqrt": _SQUARE, "cdist": _SQUARE, "lppool2d": _SQUARE,
    "logsumexp": "x.amax(1) is its limit and has rules, for training anew",
    "embedding": "inputs are numbers that may change a little, and an index is none; certify from the vectors on",
    "embeddingbag": "inputs are numbers that may change a little, and an index is none; certify from the vectors on",
    "long": "inputs are numbers that may change a little, and an index is none; certify from the vectors on",
    "conv3d": "only Conv1d and Conv2d have rules",
    "convtranspose1d": "nn.ConvTranspose2d on x.unsqueeze(2), with kernels (1, k), is the same and has rules",
    "conv_transpose1d": "F.conv_transpose2d on x.unsqueeze(2) is the same and has rules",
    "upsamplingbilinear2d": "nn.UpsamplingNearest2d has rules, for training anew",
    "grid_sample": "positions that depend on the input have no rules; fixed ones are F.interpolate, or x @ self.W",
    "affine_grid": "positions that depend on the input have no rules",
    "unfold": "for patches that do not overlap nn.Conv2d(channels, features, kernel_size=p, stride=p) is the same",
    "rot90": "x.mT.flip(2) is a quarter turn and has rules",
    "tril": "x * self.mask is the same, with a buffer of zeros and ones", "triu": "x * self.mask is the same",
    "diagonal": "(x * self.eye).sum(-1) is the same, with self.register_buffer('eye', torch.eye(n))",
    "fft_fft2": _FIXED, "fft_fft": _FIXED, "fft_rfft2": _FIXED,
    "tensor_split": "x.chunk(n, 1) and x.split([2, 3], 1) have rules",
    "column_stack": "torch.cat([...], 1) is the same and has rules", "dstack": "torch.stack([...], 2) has rules",
    "gather": "x[:, self.columns] with a buffer of integers picks the same of every input, and has rules",
    "__setitem__": "x * self.mask, with a buffer of zeros and ones, sets numbers to 0, and torch.cat replaces some",
    "setitem": "x * self.mask, with a buffer of zeros and ones, sets numbers to 0, and torch.cat replaces some",
    "masked_fill_": _CHOICE, "aminmax": "x.amin(1) and x.amax(1) have rules",
    "flipud": "it turns the batch round; x.flip(1) has rules",
    "zero_": "x * self.mask, with a buffer of zeros and ones, sets numbers to 0",
    "log1p": "transform the inputs once, before the network, and say radii in the new units",
    "log": "transform the inputs once, before the network, and say radii in the new units",
    "logit": "transform the inputs once, before the network, and say radii in the new units",
    "nan_to_num": "clean the data once, before the network",
    "zeros": _FILLED, "ones": _FILLED, "full": _FILLED, "arange": _FILLED, "linspace": _FILLED, "zeros_like": _FILLED,
    "ones_like": _FILLED, "full_like": _FILLED, "new_zeros": _FILLED, "new_ones": _FILLED, "new_full": _FILLED,
    "randn": _RANDOM, "rand": _RANDOM, "normal": _RANDOM,
    "randn_like": _RANDOM, "rand_like": _RANDOM, "bernoulli": _RANDOM, "gumbel_softmax": _RANDOM, "rrelu": _RANDOM,
    "softmin": _SOFTMAX, "softmax2d": _SOFTMAX, "logsoftmax": _SOFTMAX, "log_softmax": _SOFTMAX, "softmax": _SOFTMAX,
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
                unknown[node] = _name_of(type(leaf))
        elif (
            node.op in ("call_function", "call_method")
            and not is_shape_arithmetic(node)
            and node.target not in lowering.functions
        ):
            unknown[node] = getattr(node.target, "__name__", str(node.target))
    return unknown


def _name_of(kind: type[nn.Module]) -> str:
    """Name a layer, with its package where a supported layer has the same name, as quantized ones have."""
    if kind.__name__ in {known.__name__ for known in lowering.modules}:
        return f"{kind.__module__}.{kind.__name__}"
    return kind.__name__


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
    if last in unknown and isinstance(last.target, type):
        raise UnsupportedLayer(
            f"a network must return one tensor of shape (batch, outputs), and this one returns a {unknown[last]}. Wrap "
            "it in a module whose forward picks the logits, such as `return self.net(x).logits`."
        )
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
    hints |= {name: _QUANTIZED for name in unknown.values() if ".quantized." in name or name.startswith("quantize")}
    advice = "".join(f" {name}: {hint}." for name, hint in hints.items())
    layers = sorted(kind.__name__ for kind in lowering.modules if issubclass(kind, nn.Module))
    raise UnsupportedLayer(
        f"no rules for: {', '.join(named)}.{advice} Supported: {', '.join(layers)}, and the functions that do the same "
        "(print(certibayes.bounds.support_table()) shows all). To add a layer, register it with "
        "certibayes.networks.lower_module (or lower_function) and give its bounds with certibayes.bounds.register; "
        "CONTRIBUTING.md has a skeleton."
    )
