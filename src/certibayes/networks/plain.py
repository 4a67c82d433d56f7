"""What a module runs that its trace would not show is found and refused: nothing may be dropped silently.

A layer with an entry of its own is lowered by its type and its weights. Hooks, a patched ``forward`` and weights that
are computed at every call are none of these, so the graph would compute something else than the module.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn.modules import module as torch_modules
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune

from certibayes.errors import InvalidInput, UnsupportedLayer

_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Modules that only run another one, and the attribute that holds it."""

_REMEDIES = {
    "WeightNorm": "torch.nn.utils.remove_weight_norm({layer})",
    "SpectralNorm": "torch.nn.utils.remove_spectral_norm({layer})",
}
"""How to make the weights plain again, by the type of hook that computes them."""


def require_plain(module: Any, leaves: Collection[type[nn.Module]]) -> None:
    """Raise unless all that ``module`` does can be seen by tracing it.

    Args:
        module: the network.
        leaves: types of layers that are not looked into.

    Raises:
        InvalidInput: it is no module, or has weights without a shape.
        UnsupportedLayer: the message names the layer and says what to do.
    """
    if not isinstance(module, nn.Module):
        given = f"the class {module.__name__}; make an instance" if isinstance(module, type) else type(module).__name__
        raise InvalidInput(f"a network is an nn.Module, got {given}.")
    if torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks:
        raise UnsupportedLayer(
            "a forward hook is registered for all modules (register_module_forward_hook), and what it does cannot be "
            "bounded. Remove it by the handle that its registration returned."
        )
    for path, part in module.named_modules():
        _require_plain_part(f"{type(part).__name__} (at {path!r})" if path else type(part).__name__, path, part, leaves)
    # Tracing starts at the network's forward; __call__ of the modules inside is run, and seen.
    if type(module).__call__ is not nn.Module.__call__ and not isinstance(module, fx.GraphModule):
        raise UnsupportedLayer(f"{type(module).__name__} has a __call__ of its own. Move what it does into forward.")


def _require_plain_part(where: str, path: str, part: nn.Module, leaves: Collection[type[nn.Module]]) -> None:
    layer = f"net.get_submodule({path!r})" if path else "net"
    if type(part).__name__ in _WRAPPERS:
        raise UnsupportedLayer(
            f"{where} wraps the network proper. Pass that: {layer}.{_WRAPPERS[type(part).__name__]}."
        )
    if isinstance(part, torch.jit.ScriptModule):
        raise UnsupportedLayer(
            f"{where} was compiled by torch.jit.script or torch.jit.trace, and what it does cannot be seen. Pass the "
            "module that it was made from, with these weights: net.load_state_dict(scripted.state_dict())."
        )
    if any(is_lazy(tensor) for tensor in itertools.chain(part.parameters(False), part.buffers(False))):
        raise InvalidInput(
            f"the weights of {where} have no shape yet. Run the network once on a batch of inputs, net(x)."
        )
    if parametrize.is_parametrized(part):
        name = next(iter(cast(nn.ModuleDict, part.parametrizations)))
        raise UnsupportedLayer(
            f"{name} of {where} is parametrized: computed from other tensors at every call. Make it plain: "
            f"torch.nn.utils.parametrize.remove_parametrizations({layer}, {name!r})."
        )
    for hook in part._forward_pre_hooks.values():
        if isinstance(hook, prune.BasePruningMethod):
            raise UnsupportedLayer(
                f"{hook._tensor_name} of {where} is pruned: computed from a mask at every call. Make it plain: "
                f"torch.nn.utils.prune.remove({layer}, {hook._tensor_name!r})."
            )
        if type(hook).__name__ in _REMEDIES:
            raise UnsupportedLayer(
                f"the weights of {where} are computed at every call ({type(hook).__name__}). Make them plain: "
                f"{_REMEDIES[type(hook).__name__].format(layer=layer)}."
            )
    if part._forward_hooks or part._forward_pre_hooks:
        raise UnsupportedLayer(
            f"{where} has a forward hook, and what it does cannot be bounded. Remove it by the handle that its "
            "registration returned; if it changes values, write that as a module of its own."
        )
    # Other modules are looked into, so there only a patched forward can be missed: that of the network itself.
    for method, value in vars(part).items():
        looked_at = type(part) in leaves or method == "forward"
        if looked_at and callable(value) and callable(getattr(type(part), method, None)):
            raise UnsupportedLayer(
                f"{method} of {where} was replaced on the instance, which tracing does not see. Write it as a method "
                "of a module class of your own."
            )
