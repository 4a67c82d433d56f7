"""``verify``: a network and a specification in, ``unsat``, ``sat`` with a counterexample or ``unknown`` out.

Every box of the specification goes through the same stages, from cheap to costly, until all unsafe conjunctions are
excluded or an input is found that shows one:

    intervals and CROWN; attacks; CROWN with CROWN bounds in between, with optimized slopes; more attacks;
    splitting inputs where there are few; branch and bound on activations (beta-CROWN; Wang et al., 2021).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from certibayes.certification.clock import Ended
from certibayes.certification.network_bounds import MEMORY, logit_bounds
from certibayes.certification.unsafe_outputs import excluded_by_branching, excluded_in_parts, lower_bounds
from certibayes.errors import InvalidInput
from certibayes.networks import Network, from_onnx, onnx_reference, trace
from certibayes.networks.dropout import require_dropout_off
from certibayes.prediction import Predictor
from certibayes.support.memory import bytes_allowed
from certibayes.verification._counterexamples import Counterexamples, Reference
from certibayes.verification._inputs import FloatInputs
from certibayes.verification._unsafe import unsafe_outputs
from certibayes.verification.verification import Verification, counterexample_text
from certibayes.vnnlib import Case, Specification, read_vnnlib

CHEAP = (("ibp", "ibp"), ("crown", "ibp"))
"""Bounds and intermediates that are tried in any case."""

COSTLY = (("crown", "crown"), ("alpha-crown", "crown"))

FEW_STARTS, MANY_STARTS = 2, 16
"""Of attacks, before and after costly bounds."""

OUT_OF_TIME = "the budget is spent"
NOTHING_LEFT = "nothing is left to split"
UNBOUNDED = (
    "the bounds of some layer are NaN or come close to overflow, most likely because weights or the box are so large "
    "that intervals explode"
)


def verify(
    network: str | Path | nn.Module | Network,
    specification: str | Path | Specification,
    *,
    budget: float = 60.0,
    reference: Reference | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Verification:
    """Tell whether any input of a specification has unsafe outputs.

    Args:
        network: an ONNX file, a module made of supported layers, or a traced network.
        specification: a VNN-LIB file, or what ``vnnlib.parse_vnnlib`` made of one.
        budget: seconds; the cheapest bounds are computed in any case, and a stage that has begun may go a little over.
        reference: another program for the network, which has to agree to a counterexample; for an ONNX file it is
            onnx's own reference evaluation.
        device: where to compute; where the network is by default.
        seed: of attacks.

    Returns:
        ``"unsat"`` only where it is proved for the float program, outward rounding included. ``"sat"`` only with an
        input inside the box whose outputs are unsafe as they were computed, exactly compared.

    Raises:
        InvalidInput: the network and the specification do not fit, or something cannot be read.
        UnsupportedLayer: an operator or a layer has no rules.
    """
    if not (isinstance(budget, (int, float)) and budget >= 0 and not math.isnan(budget)):
        raise InvalidInput(f"budget must be a number of seconds, at least 0; got {budget!r}.")
    start = time.monotonic()
    if isinstance(network, (str, Path)):
        reference = onnx_reference(network) if reference is None else reference
        network = from_onnx(network)
    if isinstance(specification, (str, Path)):
        specification = read_vnnlib(specification)
    predictor = _single(network, device)
    _require_fit(predictor, specification)
    outcomes: list[_Outcome] = []
    for number, case in enumerate(specification.cases):
        # Each box has its part of the time that those before it have left.
        now = time.monotonic()
        deadline = now + max(0.0, start + budget - now) / (len(specification.cases) - number)
        outcome = _Verifying(predictor, case, reference, deadline, seed).run()
        outcomes.append(outcome)
        if outcome.found is not None:
            break
    conjunctions = sum(len(case.unsafe) for case in specification.cases)
    excluded, seconds = sum(outcome.excluded for outcome in outcomes), time.monotonic() - start
    found = outcomes[-1].found if outcomes else None
    if found is not None:
        inputs, outputs, text = found
        return Verification("sat", excluded, conjunctions, seconds, "", inputs, outputs, text)
    reasons = dict.fromkeys(outcome.reason for outcome in outcomes if outcome.reason)
    answer = "unknown" if reasons else "unsat"
    return Verification(answer, excluded, conjunctions, seconds, "; ".join(reasons))


def _single(network: nn.Module | Network, device: str | torch.device | None) -> Predictor:
    """Return a network as a predictor of one sample."""
    if isinstance(network, Network):
        traced = network
    else:
        traced = trace(network)
        require_dropout_off(network)
    traced.graph.require_all_of("a specification of the outputs")
    tensors = {**traced.params, **traced.buffers}
    used = {name for node in traced.graph.nodes for name in node.roles.values()}
    # A predictor reads its precision off its weights; a network without any runs in float32.
    samples = {name: tensor[None] for name, tensor in tensors.items() if name in used} or {"": torch.zeros(1)}
    predictor = Predictor(traced.graph, samples)
    if predictor.dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"proofs need float32 or float64 precision, this network runs in {predictor.dtype}.")
    return predictor if device is None else predictor.to(device)


def _require_fit(predictor: Predictor, specification: Specification) -> None:
    inputs, outputs = math.prod(predictor.graph.input_shape), predictor.classes
    if (specification.inputs, specification.outputs) != (inputs, outputs):
        raise InvalidInput(
            f"the specification has {specification.inputs} inputs and {specification.outputs} outputs, the network "
            f"{inputs} and {outputs}. They do not belong together."
        )


class _Found(NamedTuple):
    """A counterexample: input (*shape), outputs (C,) and both as text."""

    inputs: Tensor
    outputs: Tensor
    text: str


@dataclass(frozen=True)
class _Outcome:
    """What was found about one box."""

    excluded: int
    found: _Found | None = None
    reason: str = ""


class _Verifying:
    """One box on its way through the stages.

    Attributes:
        unsafe: all conjunctions.
        excluded: which of them are excluded, bool (K,).
    """

    def __init__(self, predictor: Predictor, case: Case, reference: Reference | None, deadline: float, seed: int):
        self.predictor, self.deadline = predictor, deadline
        self.inputs = FloatInputs(case, predictor.graph.input_shape, predictor.dtype, predictor.device)
        lower, upper = logit_bounds(predictor, self.inputs.box)
        self.unsafe = unsafe_outputs(case.unsafe, torch.maximum(-lower, upper)[0, 0], predictor.dtype)
        self.excluded = torch.zeros(self.unsafe.conjunctions, dtype=torch.bool, device=predictor.device)
        self.bounded = bool(torch.isfinite(lower).all())
        self.search = Counterexamples(predictor, self.inputs, self.unsafe, reference)
        self.generator = torch.Generator(predictor.device).manual_seed(seed)

    def run(self) -> _Outcome:
        """Go through the stages until the box is decided."""
        self._by_bounds(CHEAP)
        for stage in (self._attack_a_little, self._costly_bounds, self._attack_more, self._in_parts, self._branching):
            if bool(self.excluded.all()) or self.search.found is not None or self._ended():
                break
            stage()
        count = int(self.excluded.sum())
        if self.search.found is not None:
            x, outputs = self.search.found[0], self.search.outputs
            assert outputs is not None
            text = counterexample_text(self.inputs.texts(x), outputs.double().tolist())
            return _Outcome(count, _Found(x, outputs, text))
        if bool(self.excluded.all()):
            return _Outcome(count)
        return _Outcome(count, None, self._reason())

    def _ended(self) -> bool:
        return time.monotonic() >= self.deadline

    def _reason(self) -> str:
        if not self.bounded:
            return UNBOUNDED
        return OUT_OF_TIME if self._ended() else NOTHING_LEFT

    def _by_bounds(self, kinds: tuple[tuple[str, str], ...]) -> None:
        for bounds, intermediates in kinds:
            part = self.unsafe.take(~self.excluded)
            if part.conjunctions == 0:
                return
            lower = lower_bounds(self.predictor, self.inputs.box, part, bounds, intermediates)
            self._exclude(part.excluded(lower)[0])

    def _exclude(self, found: Tensor) -> None:
        """Record which of the conjunctions that are left, (L,), are excluded."""
        self.excluded = self.excluded.masked_scatter(~self.excluded, found)

    def _costly_bounds(self) -> None:
        for kind in COSTLY:
            if not self._ended() and self.bounded:
                self._by_bounds((kind,))

    def _attack_a_little(self) -> None:
        self.search.attack(~self.excluded, FEW_STARTS, self.generator)

    def _attack_more(self) -> None:
        for _ in range(MANY_STARTS // FEW_STARTS):
            if self._ended() or self.search.attack(~self.excluded, FEW_STARTS, self.generator):
                return

    def _in_parts(self) -> None:
        part, now = self.unsafe.take(~self.excluded), time.monotonic()
        # What splitting inputs cannot decide, splitting on activations may.
        ended = _at(now + 0.75 * (self.deadline - now))
        self._exclude(excluded_in_parts(self.predictor, self.inputs.box, part, self.search.look, ended))

    def _branching(self) -> None:
        part, memory = self.unsafe.take(~self.excluded), bytes_allowed(self.predictor.device, on_cpu=MEMORY)
        self._exclude(
            excluded_by_branching(self.predictor, self.inputs.box, part, self.search.look, self._ended, memory)
        )


def _at(moment: float) -> Ended:
    return lambda: time.monotonic() >= moment
