"""Stages of certification, one per file: each makes what is known about a batch of points better."""

from certibayes.certification.stages.attack import Attack, AttackFromWorstInputs
from certibayes.certification.stages.joint import JointBound
from certibayes.certification.stages.logits import LogitBounds
from certibayes.certification.stages.margins import MarginBounds
from certibayes.certification.stages.refine import Refine, RefineRegained
from certibayes.certification.stages.split_activations import SplitActivations
from certibayes.certification.stages.split_inputs import SplitInputs

__all__ = [
    "Attack",
    "AttackFromWorstInputs",
    "JointBound",
    "LogitBounds",
    "MarginBounds",
    "Refine",
    "RefineRegained",
    "SplitActivations",
    "SplitInputs",
]
