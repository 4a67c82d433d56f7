"""What helps where a module cannot be traced, by the words of Python's and torch's own errors."""

from __future__ import annotations

_HINTS = {
    "installed as a submodule": "Hold layers in an nn.ModuleList or nn.ModuleDict, not in a list: torch then finds "
    "their weights, and eval() reaches them.",
    "parameter is not a member": "Hold a parameter as an attribute of a module or in an nn.ParameterList, not in a "
    "list; what register_buffer takes is a plain tensor, weight.detach().",
    "dynamo-optimized": "Take @torch.compile off its forward.",
    "argument of type": "A network returns one tensor; for any other object wrap it in a module whose forward picks "
    "the logits, such as `return self.net(x).logits`.",
    "isinstance(": "The stand-in is no torch.Tensor for isinstance; leave the question out.",
    "is_tensor(": "The stand-in is no torch.Tensor for is_tensor; leave the question out.",
    "Expected a value of type": "Functions of torch.jit.script take no stand-in; call the Python function itself.",
    "positional argument": "Do without a tensor of the batch's size that is made inside forward: self.token + x "
    "broadcasts, F.pad(x, (0, n)) puts zeros beside x, and a recurrence can start from its first step.",
    "item assignment": "x * self.mask, with a buffer of zeros and ones, sets numbers to 0; torch.cat replaces some.",
    "np.": "Of sizes, math.sqrt and math.prod take what numpy does not.",
    "has no attribute 'prod'": "Of a shape, math.prod is the product, and x.flatten(1) needs none.",
    "descriptor": "Write a method of torch.Tensor as a method, x.relu(), or as a function, torch.relu(x).",
}
"""What helps, by words in the error or in the line that raised it."""


def hints_for(text: str) -> str:
    """Return the sentences that help, each after a space.

    Args:
        text: an error, and the line that raised it.
    """
    return "".join(f" {hint}" for words, hint in _HINTS.items() if words in text)
