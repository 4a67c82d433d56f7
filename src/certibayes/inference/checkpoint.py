"""Checkpoints: everything a run needs to go on with the same bits, in one safetensors file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.errors import CorruptFile, RunExists
from certibayes.support.files import read_tensors, write_tensors

FILE_NAME = "checkpoint.safetensors"

State = TypeVar("State")


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        step: steps made since the start.
        history: one record per epoch, as callbacks see them.
        loss_sum: of the losses since the current epoch began, so that a resumed epoch reports the same mean.
    """

    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    loss_sum: float = 0.0


def write_checkpoint(
    directory: Path,
    run: dict[str, Any],
    state: Any,
    buffers: dict[str, Tensor],
    generators: dict[str, torch.Generator],
    progress: dict[str, Any],
) -> None:
    """Write a checkpoint, replacing the last one only when the new one is complete.

    Args:
        directory: of the run.
        run: what identifies the run; compared when it is resumed.
        state: the algorithm's state, a pytree of tensors.
        buffers: of the network.
        generators: by name.
        progress: how far the run has come, as JSON.
    """
    leaves, _ = pytree.tree_flatten(state)
    tensors = {f"state:{index:04d}": leaf for index, leaf in enumerate(leaves)}
    tensors |= {f"buffer:{name}": tensor for name, tensor in buffers.items()}
    tensors |= {f"generator:{name}": generator.get_state() for name, generator in generators.items()}
    write_tensors(directory / FILE_NAME, "checkpoint", tensors, {"run": run, **progress})


def read_checkpoint(
    directory: Path,
    run: dict[str, Any],
    state: State,
    buffers: dict[str, Tensor],
    generators: dict[str, torch.Generator],
) -> tuple[State, dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint into a state of the same structure, and set the generators.

    Returns:
        State, buffers and progress, as they were written.

    Raises:
        RunExists: the checkpoint belongs to a run with other settings; the message names them.
    """
    tensors, progress = read_tensors(directory / FILE_NAME, "checkpoint")
    differing = list(differences(progress.pop("run"), run))
    if differing:
        raise RunExists(
            f"{directory} holds another run; it differs in {', '.join(differing)}. Resume with the settings it was "
            "started with, or choose another directory."
        )
    leaves, structure = pytree.tree_flatten(state)
    try:
        read = [tensors[f"state:{index:04d}"].to(leaf.device) for index, leaf in enumerate(leaves)]
        for name, generator in generators.items():
            generator.set_state(tensors[f"generator:{name}"])
        buffers = {name: tensors[f"buffer:{name}"].to(tensor.device) for name, tensor in buffers.items()}
    except KeyError as error:
        raise CorruptFile(f"the checkpoint in {directory} lacks {error}; start the run afresh.") from error
    return pytree.tree_unflatten(read, structure), buffers, progress


def differences(there: Any, here: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted path of every setting that differs, such as ``algorithm.lr (0.1 there, 0.2 here)``.

    Two objects of different names differ as a whole; so do lists, and values that are too long to be read are left out.
    """
    if there == here:
        return
    nested = isinstance(there, dict) and isinstance(here, dict)
    if nested and there.get("name") == here.get("name"):
        for key in {**here, **there}:
            yield from differences(there.get(key), here.get(key), f"{path}.{key}" if path else str(key))
        return
    shown = [str(value["name"] if nested else value) for value in (there, here)]
    readable = all(len(text) <= 40 for text in shown)
    yield path + (f" ({shown[0]} there, {shown[1]} here)" if readable else "")
