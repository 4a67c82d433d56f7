"""``fit``: drive any algorithm over any data, with progress, validation, checkpoints and resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from certibayes.data import Augmentation
from certibayes.inference._batches import Data, Pair
from certibayes.inference._border import require_progress
from certibayes.inference._group import trained
from certibayes.inference._prepare import Asked, Known, prepare
from certibayes.inference._run import Result
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.loop import Callback
from certibayes.inference.map import MAP
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.likelihoods import Likelihood
from certibayes.networks import Network
from certibayes.posteriors import Posterior
from certibayes.support.progress import Report


def fit(  # noqa: PLR0913 - public
    net: nn.Module | Network,
    train: Data,
    *,
    algorithm: Algorithm[Any] | str,
    likelihood: Likelihood | str | None = None,
    prior: GaussianPrior | None = None,
    epochs: int = 20,
    batch_size: int = 128,
    seed: int = 0,
    temperature: float | str | Sequence[float] | None = None,
    schedule: Schedule | None = None,
    clip: float | None = None,
    validation: float | Pair | None = None,
    augment: Augmentation | Sequence[Augmentation] | str | None = None,
    stochastic: str | Sequence[str] | None = None,
    map_lr: float = MAP.lr,
    device: str | torch.device | None = None,
    precision: str = "highest",
    batch_norm: str | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool | Report = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    on_start: Callable[[], None] = lambda: None,
) -> Posterior:
    """Infer a posterior over the parameters of ``net``.

    Args:
        net: any traceable module, or the ``network`` of a ``Point`` that was trained before; inference starts from its
            parameters and leaves it untouched. Parameters that are frozen (``requires_grad=False``) are constants: they
            have no prior and do not vary, are part of the posterior as they are, and are named in its metadata, under
            ``"frozen"``; a frozen batch norm keeps its statistics.
        train: (inputs, targets) as tensors, arrays or lists; what ``certibayes.data.load`` returned, of which the
            training split is taken; a torch Dataset; or a DataLoader (which keeps its own batch size).
        algorithm: such as ``VOGN()``, or a name such as ``"vogn"`` for one with its defaults; see
            ``inference.ALGORITHMS``.
        likelihood: ``Categorical()`` by default.
        prior: ``GaussianPrior()`` by default; ``LearnedPrior()`` learns its variances.
        epochs: passes over the data; for HMC, trajectories that are kept, with burn-in on top. 0 only for methods that
            can work on a trained network.
        batch_size: examples per step.
        seed: of every random number; the same seed on the same machine gives the same bits, also after a resume.
        temperature: 1 is Bayes' rule, and the default; but where the likelihood depends on bounds, the default is the
            algorithm's ``robust_temperature``. Recorded in the posterior. ``"validate"``, or a sequence of candidates,
            chooses the one whose predictor explains held-out training data best and reports the curve in the metadata,
            under ``"temperature_curve"``; see ``inference.temperature``.
        schedule: of the learning rate; constant by default.
        clip: largest norm that the gradient of a batch's mean loss may have; a longer one is scaled down to it.
            Certified training of deep networks takes 10. Not for HMC. Recorded in the posterior.
        validation: a fraction of the training tensors to hold out, or data of its own. The state is evaluated on it
            after each epoch, and the posterior's predictor at the end (metadata ``"held_out"``). 0.1 where a
            temperature is to be chosen and nothing else is said.
        augment: how training images are changed at random: ``certibayes.data.RandomFlip()``,
            ``certibayes.data.RandomCrop(padding=2)``, a list of them, or ``"flip,crop:2"``. Every batch is changed
            anew; validation, statistics of batch norm and curvature at the end are about the images as they are, and
            the number N of examples stays theirs. Not for methods that take all data at once (HMC).
        stochastic: which parameters are inferred; all by default. ``"last"`` for the last layer that has weights, the
            name of a module (``"4"``) or of a parameter, a pattern (``"*.weight"``), a list of these, or one string
            with commas. The others are fitted by MAP in the same steps, with the same prior, and are constants of the
            posterior; the metadata have both under ``"stochastic"``. Where the algorithm collects iterates (SWAG,
            SGHMC, snapshots), the others rest from the first of them on, so that all belong to the same network. With
            HMC the others stay as they are given. Not for MAP and DeepEnsemble.
        map_lr: learning rate of Adam for the parameters that are not random; it follows ``schedule`` too.
        device: where to train; by default where the network is.
        precision: ``"highest"``; or, which is faster, ``"high"`` if products on a GPU may round their factors to TF32,
            and ``"medium"`` if convolutions there, and matrix products on a CPU that has instructions for it, may round
            them to bfloat16.
            For training alone: predictors and certificates never do, nor do the ends of HMC's trajectories.
        batch_norm: where the statistics of batch norm come from in training. ``"batch"``, the default: from the clean
            inputs of the step, with gradient, for boxes and attacked inputs too; no example then has a likelihood by
            itself. ``"constant"``, the default of the algorithms that need one (VOGN, HMC): from clean training data,
            refreshed between epochs. Predictors have constants in both modes, for each weight sample its own. Recorded
            in the posterior.
        callbacks: called after each epoch.
        progress: True for a bar on standard error, False for nothing, or a function of (steps made, steps in all).
        checkpoint: directory for checkpoints; none are written without it.
        checkpoint_every: seconds between checkpoints.
        resume: go on from the checkpoint in that directory, if there is one.
        on_start: called once, when everything has been checked and before the first step; the place to write files
            that a call with wrong settings must not leave behind.

    Returns:
        The posterior. Its domain, which certificates take over, is that of the likelihood or else of the data set.

    Raises:
        InvalidInput: data, labels or settings cannot be used.
        UnsupportedLayer: the network holds a layer without rules.
        RunExists: the checkpoint directory holds another run, or ``resume`` is false and it holds one at all.
        Diverged: the loss is not a number any more.
        Interrupted: Ctrl-C; a checkpoint was written if a directory was given.
    """
    require_progress(progress)
    asked = Asked(
        net=net,
        train=train,
        algorithm=algorithm,
        likelihood=likelihood,
        prior=prior,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        temperature=temperature,
        schedule=schedule,
        validation=validation,
        device=device,
        precision=precision,
        batch_norm=batch_norm,
        clip=clip,
        augment=augment,
        stochastic=stochastic,
        map_lr=map_lr,
        callbacks=callbacks,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
    )
    run = prepare(asked, Known())
    on_start()
    # Candidate temperatures are trained as one program where that is much faster. On a CPU it is not, and one after
    # another the chosen one has the bits that it has alone.
    group_size = 1 if run.device.type == "cpu" else None
    result = Result(run)
    for number, outcome in trained(run.loops(), run.directory, group_size=group_size, resume=resume, progress=progress):
        result.add(number, outcome)
    return result.posterior()
