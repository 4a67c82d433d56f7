"""The network that a spec asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.experiments.factory import names_factory, network_from
from certibayes.networks import Normalize, build

if TYPE_CHECKING:
    from certibayes.experiments.spec import TrainSpec


def build_network(spec: TrainSpec, data: DataSet) -> nn.Module:
    """Build the network for a data set.

    For a table in units of its own it begins with the normalization of its columns and, for regression, ends in
    the target's units.
    """
    spec = spec.resolved()
    if names_factory(spec.architecture):
        return _own_network(spec)
    outputs = len(data.classes) or int(data.train.targets.shape[-1])
    settings: dict[str, Any] = {"hidden": spec.hidden} if spec.architecture == "mlp" else {}
    if spec.channels is not None:
        settings["channels"] = spec.channels
    normalize = data.channel_statistics() if spec.normalize else None
    in_own_units = data.own_units and spec.normalize is not False
    if in_own_units:
        mean, std = data.column_statistics()
        # A column that never changed is left at its size.
        normalize = mean, tuple(value or 1.0 for value in std)
    network = build(
        spec.architecture,
        tuple(data.train.inputs.shape[1:]),
        outputs,
        spec.seed,
        normalize=normalize,
        init=spec.init or "torch",
        **settings,
    )
    if in_own_units and not data.classes:
        # x std + mean, as the normalization that undoes another one.
        mean, std = data.column_statistics("targets")
        std = tuple(value or 1.0 for value in std)
        back = tuple(-m / s for m, s in zip(mean, std, strict=True)), tuple(1.0 / s for s in std)
        network = nn.Sequential(*network, Normalize(*back))
    return network


def _own_network(spec: TrainSpec) -> nn.Module:
    """Let a factory make the network; what it makes is taken as it is."""
    if spec.normalize or spec.init != "torch":
        raise InvalidInput(
            f"normalize and init are for architectures that are known here; {spec.architecture} does such things "
            "by itself (certibayes.networks.Normalize, init_interval_aware). Leave them out."
        )
    return network_from(spec.architecture, spec.seed)
