"""What a posterior's uncertainty is worth: one row of figures for each of several posteriors, on one data set.

Scores of predictions (NLL, Brier score, calibration), what uncertainty is for (telling out-of-distribution inputs
apart, answering only what is sure), what of it is proved for every input within a radius (accuracy, NLL, Brier score,
entropy, abstention), and what it costs in evidence (ELBO).

Of out-of-distribution inputs two things are proved. The fraction that a rule abstains on, whatever an attacker does to
them within the radius: the confidence is at most τ over the whole ball. And the guaranteed AUROC (Bitterwolf, Meinke
and Hein, "Certifiably Adversarially Robust Detection of Out-of-Distribution Data", 2020): that of confidence, if every
out-of-distribution input were as confident as the certificate cannot rule out. An attack on these inputs leaves at
least as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from certibayes.certification import Method, abstains, certified_scores, certify, entropy_bounds, max_confidence
from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.evaluation import Evidence, assess, auroc, elbo
from certibayes.posteriors import DiagonalGaussian, GaussianMixture, LastLayerGaussian, Posterior
from certibayes.support.checks import inputs_of

Figures = dict[str, Any]


def worth_of_uncertainty(  # noqa: PLR0913 - public
    posteriors: Mapping[str, Posterior],
    dataset: DataSet,
    outside: Tensor,
    *,
    eps: float,
    method: str | Method = "theorem1",
    samples: int = 35,
    seed: int = 0,
    tau: float = 0.5,
    coverage: float = 0.9,
    limit: int | None = None,
    device: str | torch.device | None = None,
    train: Any = None,
    evidence_samples: int = 32,
    on_progress: Callable[[str], Any] = lambda name: None,
) -> list[Figures]:
    """Measure what the uncertainty of posteriors is worth, and what of it is proved.

    Args:
        posteriors: by name, all for the data set.
        dataset: its test inputs are in distribution.
        outside: out-of-distribution inputs of the same shape, (m, ...), such as ``load_out_of_distribution`` returns.
        eps: radius of everything that is proved, in l-infinity, inside the data set's domain.
        method: of certification.
        samples: of each predictor; fewer where a posterior holds fewer.
        seed: of the samples.
        tau: confidence below which a rule abstains.
        coverage: fraction of inputs that are answered, for the selective accuracy.
        limit: take only the first so many test inputs.
        device: where everything is computed; by default where each posterior is.
        train: what the posteriors were inferred from, for the ELBO and batch norm statistics; by default the data set's
            training split. Where a posterior was inferred from others, its ELBO is missing, with the reason.
        evidence_samples: of the ELBO; 0 for none.
        on_progress: called with the name of each posterior that is done.

    Returns:
        A row for each posterior, flat, all of it plain numbers and words. Keys: ``posterior``, ``temperature``,
        ``samples``, ``digest``; of test inputs ``accuracy``, ``nll``, ``brier``, ``ece``, ``aurc``,
        ``selective_accuracy``, ``entropy``, ``mutual_information``, ``disagreement``; of out-of-distribution inputs
        ``out_entropy``, ``out_mutual_information``, ``auroc`` (by predictive entropy), ``auroc_mutual_information``,
        ``auroc_confidence``; proved ``certified``, ``certified_nll``, ``certified_brier``, ``certified_entropy_lower``
        and ``_upper``, ``certified_abstention`` (of out-of-distribution inputs), ``in_abstention`` (of test inputs,
        better small), ``out_entropy_lower`` and ``guaranteed_auroc``; ``elbo``, ``elbo_error``, ``kl``,
        ``learned_variances``, ``models`` and ``elbo_standard``, None where there is none, and then ``elbo_missing``.
    """
    if not posteriors:
        raise InvalidInput("there are no posteriors to compare; name some, such as {'VOGN': posterior}.")
    outside = inputs_of(outside, "the out-of-distribution inputs")
    train = dataset.train if train is None else train
    rows = []
    for name, posterior in posteriors.items():
        held = samples if posterior.held is None else min(samples, posterior.held)
        data = train if posterior.statistics_vary else None
        predictor = posterior.predictor(held, seed=seed, device=device, data=data)
        x, y, out = (part.to(predictor.device) for part in (*(t[:limit] for t in dataset.test), outside))
        found = assess(predictor, x, y, out)
        inside, beyond = found.inside, found.outside
        figures = found.summary()
        ball: dict[str, Any] = {"eps": eps, "domain": dataset.domain, "method": method}
        proved, proved_outside = certify(predictor, x, y, **ball), certify(predictor, out, **ball)
        worst = certified_scores(proved).summary()
        rows.append(
            {
                "posterior": name,
                "temperature": posterior.metadata.get("temperature"),
                "samples": predictor.size,
                "n": len(x),
                "eps": eps,
                **{key: figures["in"][key] for key in ("accuracy", "nll", "brier", "ece", "aurc")},
                "selective_accuracy": found.risk_coverage.accuracy_at(coverage),
                "entropy": figures["in"]["predictive_entropy"],
                "mutual_information": figures["in"]["mutual_information"],
                "disagreement": figures["in"]["disagreement"],
                "out_entropy": figures["out"]["predictive_entropy"],
                "out_mutual_information": figures["out"]["mutual_information"],
                "auroc": figures["detection"]["predictive_entropy"]["auroc"],
                "auroc_mutual_information": auroc(inside.mutual_information, beyond.mutual_information),
                "auroc_confidence": auroc(1 - inside.max_probability, 1 - beyond.max_probability),
                "certified": worst["accuracy"],
                "certified_nll": worst["nll"],
                "certified_brier": worst["brier"],
                "certified_entropy_lower": worst["entropy_lower"],
                "certified_entropy_upper": worst["entropy_upper"],
                "certified_abstention": float(abstains(proved_outside, tau).double().mean()),
                "in_abstention": float(abstains(proved, tau).double().mean()),
                "out_entropy_lower": float(entropy_bounds(proved_outside)[0].mean()),
                "guaranteed_auroc": auroc(1 - inside.max_probability, 1 - max_confidence(proved_outside).cpu()),
                **_evidence(posterior, train, evidence_samples, device),
                "digest": predictor.digest,
            }
        )
        on_progress(name)
    return rows


def _evidence(posterior: Posterior, train: Any, samples: int, device: str | torch.device | None) -> Figures:
    """Return the ELBO under the posterior's own and the standard likelihood, or why there is none."""
    nothing: Figures = dict.fromkeys(
        ("elbo", "elbo_error", "kl", "learned_variances", "models", "elbo_standard", "elbo_missing")
    )
    if not isinstance(posterior, DiagonalGaussian | LastLayerGaussian | GaussianMixture):
        return {**nothing, "elbo_missing": f"a {type(posterior).__name__} has no density"}
    if not samples:
        return {**nothing, "elbo_missing": "not asked for"}
    try:
        own, standard = (
            elbo(posterior, train, likelihood=likelihood, samples=samples, device=device)
            for likelihood in (None, "standard")
        )
    except InvalidInput as error:
        return {**nothing, "elbo_missing": str(error)}
    return {**nothing, **_bound(own), "elbo_standard": standard.elbo}


def _bound(found: Evidence) -> Figures:
    return {
        "elbo": found.elbo,
        "elbo_error": found.standard_error,
        "kl": found.kl,
        "learned_variances": found.learned_variances,
        "models": found.models,
    }


def _percent(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{100 * row[key]:.1f}%"


def _number(key: str, digits: int = 3) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "" if row[key] is None else f"{row[key]:.{digits}f}"


COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "accuracy": _percent("accuracy"),
    "certified": _percent("certified"),
    "NLL": _number("nll"),
    "certified NLL": _number("certified_nll"),
    "Brier": _number("brier"),
    "certified Brier": _number("certified_brier"),
    "ECE": _number("ece", 4),
    "selective accuracy": _percent("selective_accuracy"),
    "mutual information": _number("mutual_information", 4),
    "entropy": _number("entropy"),
    "certified entropy": lambda row: f"{row['certified_entropy_lower']:.3f} to {row['certified_entropy_upper']:.3f}",
    "AUROC": _number("auroc"),
    "guaranteed AUROC": _number("guaranteed_auroc"),
    "certified abstention": _percent("certified_abstention"),
    "ELBO": _number("elbo"),
}
"""The table's columns and how they are written. AUROC is by predictive entropy, the guaranteed one by confidence."""


def worth_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write the rows as a table; all figures are in ``tables.rows_csv(rows)``."""
    lines = [["posterior", "temperature", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    for row in rows:
        temperature = "" if row["temperature"] is None else f"{row['temperature']:g}"
        lines.append([str(row["posterior"]), temperature, *(write(row) for write in COLUMNS.values())])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
