"""Fill in docs/results.md: every claim of the paper beside the tables in results/, with a verdict.

    python docs/results_page.py

Claims are those of ``certibayes/experiments/specs/claims.toml``. Tables of the paper's figures are read as they are;
those of the older studies are read as rows of the figures that they stand in for. A test makes the page again.
"""

import csv
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from certibayes.experiments._found import find
from certibayes.experiments._paper_claims import AGREES, GROUPED, Compared, PaperClaim, compare, read_claims
from certibayes.experiments._paper_figures import SHORT
from certibayes.experiments.report import ours_in_words, paper_in_words

DOCS = Path(__file__).parent
PAGE = DOCS / "results.md"
RESULTS = DOCS.parent / "results"
MARKERS = re.compile(r"(<!-- (claims|figure1|regression): [^>]*-->\n).*?(<!-- /\2 -->)", re.DOTALL)

SECTIONS = {
    "Robustness on MNIST (Figure 1)": ("fig1", "mnist"),
    "Robustness on FashionMNIST (Figure 1)": ("fig1", "fashion-mnist"),
    "Robustness on CIFAR-10 (Figure 1)": ("fig1", "cifar10"),
    "Certified radii on MNIST (Figure 2)": ("fig2", "mnist"),
    "Certified radii on FashionMNIST (Figure 2)": ("fig2", "fashion-mnist"),
    "Certified radii on CIFAR-10 (Figure 2)": ("fig2", "cifar10"),
    "Uncertainty on MNIST (Figure 3)": ("fig3", "mnist"),
    "Uncertainty on CIFAR-10 (Figure 3)": ("fig3", "cifar10"),
    "The radius η in training": ("eta", "mnist"),
    "The weight λ of the clean term": ("lambda", "mnist"),
    "A Rayleigh distribution of the radius": ("rayleigh", "mnist"),
    "An exponential distribution of the radius": ("exponential", "mnist"),
}
"""What decides the claims under a heading: a figure and a data set."""

MEASURES = {
    "accuracy": "accuracy", "pgd": "robust accuracy under PGD", "ibp": "certified by intervals",
    "lbp": "certified by linear bounds", "radius": "mean certified radius", "likelihood_ratio": "likelihood ratio",
    "in_expected_entropy": "entropy in distribution", "out_expected_entropy": "entropy out of distribution",
    "in_max_probability": "mean probability of the predicted class, in distribution",
}  # fmt: skip
OTHERS = {
    "standard": "with the standard likelihood", "pgd": "with the PGD likelihood", "hmc": "with HMC",
    "swag": "with SWAG", "eta 0.1": "with η = 0.1", "lambda 0.75": "with λ = 0.75", "lambda 0.5": "with λ = 0.5",
    "fig1": "in Figure 1", "mnist": "on MNIST",
}  # fmt: skip
"""Words for columns, and for what a difference or a ratio is against."""

FRACTIONS = {"ibp", "elided", "best", "pgd", "accuracy", "certified"}
DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion"}
REPRODUCED = {
    "paper": "reproduced", "now": "reproduced, now", "validated": "reproduced, now, validated T",
    "regression": "reproduced",
}  # fmt: skip
"""What rows of the figures are called, by their recipe."""

Row = dict[str, Any]


def filled(page: str) -> str:
    """Return the page with its tables."""
    makers = {"claims": claims_in_markdown, "figure1": figure1_in_markdown, "regression": regression_in_markdown}
    return MARKERS.sub(lambda found: f"{found[1]}\n{makers[found[2]]()}\n{found[3]}", page)


def claims_in_markdown() -> str:
    """Return every claim under its heading, with what was found and a verdict."""
    claims, rows = read_claims(), all_rows()
    parts, verdicts = [], []
    for title, (figure, dataset) in SECTIONS.items():
        unfinished = False
        lines = [f"### {title}", "", "| the paper says | that is | ours | verdict |", "| --- | --- | --- | --- |"]
        for claim in claims:
            if claim.figure == figure and dataset in _datasets(claim):
                own = replace(claim, dataset=dataset)
                about = [row for row in rows if own.is_about(tuple(str(row[axis]) for axis in GROUPED))]
                about = [row for row in about if isinstance(row.get(own.measure), (int, float))]
                found = compare(rows, [own])
                verdicts.append(_verdict(own, found, about))
                lines.append(_line(own, found, about, verdicts[-1]))
                unfinished |= "not run yet" in verdicts[-1]
        if unfinished:
            lines += ["", f"What is not run yet: `certibayes reproduce {figure} --dataset {dataset} --device cuda`."]
        parts.append("\n".join(lines))
    return "\n\n".join([_counted(verdicts), *parts]) + "\n"


def _counted(verdicts: Sequence[str]) -> str:
    """Say how many claims came out how."""
    count = {
        start: sum(verdict.startswith(start) for verdict in verdicts)
        for start in ("agrees", "agrees in", "differs", "not run")
    }
    return (
        f"Of {len(verdicts)} claims, each data set counted by itself, {count['agrees'] - count['agrees in']} agree, "
        f"{count['agrees in']} agree in part, {count['differs']} differ, and {count['not run']} are not run yet."
    )


def figure1_in_markdown() -> str:
    """Return Figure 1's rows of the IBP likelihood: means over seeds, with their standard deviations."""
    shown = {
        "ibp": "`theorem1`", "elided": "`elided`", "best": "`best`", "pgd": "under PGD", "accuracy": "accuracy",
        "mutual_information": "MI",
    }  # fmt: skip
    rows = [row for row in _table("paper/fig1") if row["likelihood"] == "ibp"]
    return _means(rows, {"dataset": DATASETS, "method": SHORT, "recipe": {}}, shown)


def regression_in_markdown() -> str:
    """Return the means of the regression over seeds, with their standard deviations."""
    shown = {"rmse": "error", "nll": "NLL", "width": "mean width of the intervals", "certified": "certified"}
    return _means(_table("paper/regression"), {"method": SHORT, "likelihood": {}}, shown)


def _means(rows: Sequence[Row], by: Mapping[str, Mapping[str, str]], shown: Mapping[str, str]) -> str:
    """Return a table of means and standard deviations over seeds.

    Args:
        rows: one for each seed.
        by: columns that tell rows apart but for their seeds, each with words for its values.
        shown: columns of figures, with their titles; fractions are shown in percent.
    """
    titles = [column if column in ("likelihood", "recipe") else "" for column in by]
    titles += [f"{title}, %" if column in FRACTIONS else title for column, title in shown.items()]
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in by), []).append(row)
    for key, own in groups.items():
        cells = [words.get(value, value) for value, words in zip(key, by.values(), strict=True)]
        for column in shown:
            scale, digits = (100, 1) if column in FRACTIONS else (1, 3)
            values = [scale * row[column] for row in own]
            if column == "mutual_information":
                cells.append(f"{statistics.fmean(values):.4f}")
                continue
            # Not to be broken over lines.
            cells.append(f"{statistics.fmean(values):.{digits}f}&nbsp;±&nbsp;{statistics.stdev(values):.{digits}f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _datasets(claim: PaperClaim) -> list[str]:
    return [claim.dataset] if isinstance(claim.dataset, str) else claim.dataset


def _line(claim: PaperClaim, found: Sequence[Compared], about: Sequence[Row], verdict: str) -> str:
    says = f"“{claim.says}”<br>*{claim.where}*"
    sources: dict[str, list[Compared]] = {}
    for each in found:
        network = each.axes["network"] if claim.dataset == "cifar10" else ""
        sources.setdefault(", ".join(part for part in (each.axes["recipe"], network) if part), []).append(each)
    ours = "<br>".join(f"*{source}*: {', '.join(_one(each, about) for each in own)}" for source, own in sources.items())
    reasons = dict.fromkeys(each.reason for each in found if each.reason and each.reason == claim.reason)
    ours += "".join(f"<br>{reason}" for reason in reasons)
    return "| " + " | ".join((says, _stated(claim), ours, verdict)) + " |"


def _stated(claim: PaperClaim) -> str:
    measure = MEASURES.get(claim.measure, claim.measure.replace("_", " "))
    others = [OTHERS[value] for value in claim.against.values() if value]
    others += [MEASURES[claim.against_measure]] if claim.against_measure else []
    if not others:
        return f"{measure}: {paper_in_words(claim)}"
    if claim.is_ == "about":
        number, _, margin = paper_in_words(claim).partition(" (")
        if not claim.value:
            return f"{measure}: the same ({margin.replace(')', ' points)')} as {', '.join(others)}"
        word = "times" if claim.how == "ratio" else "from"
        return f"{measure}: {number} ({margin} {word} that {', '.join(others)}"
    way = "larger" if claim.is_ == "above" else "smaller"
    more = f", by more than {ours_in_words(claim, claim.value)[1:]}" if claim.value else ""
    return f"{measure}: {way} than {', '.join(others)}{more}"


def _one(found: Compared, about: Sequence[Row]) -> str:
    axes = found.axes
    method = SHORT.get(axes["method"], "")
    kinds = [axes["likelihood"]] if len(found.claim.of.get("likelihood", ())) > 1 else []
    kinds += [axes["variation"]] if len(found.claim.of.get("variation", ())) > 1 else []
    if not method:
        # The best, or the mean, of those that are there.
        own = list(dict.fromkeys(SHORT[row["method"]] for row in about if row["recipe"] == axes["recipe"]))
        method = "the best" if found.claim.methods == "largest" else "the mean"
        if len(own) < len(found.claim.of["method"]):
            method = own[0] if len(own) == 1 else f"{method} of {', '.join(own)}"
    mark = "" if found.verdict == AGREES else f" **{found.verdict}**"
    return " ".join([method, *kinds, ours_in_words(found.claim, found.ours)]) + mark


def _verdict(claim: PaperClaim, found: Sequence[Compared], about: Sequence[Row]) -> str:
    if not found:
        return "not run yet"
    agree = sum(each.verdict == AGREES for each in found)
    word = "agrees" if agree == len(found) else "differs" if not agree else f"agrees in {agree} of {len(found)}"
    others = {each.verdict for each in found} - {AGREES}
    if len(others) == 1 and claim.is_ == "about":
        word += f", {'the rest ' * bool(agree)}{others.pop()}"
    decided = {each.axes["method"] for each in found} if claim.methods == "each" else {row["method"] for row in about}
    missing = [SHORT[method] for method in claim.of.get("method", []) if method not in decided]
    return word + (f" ({', '.join(missing)} not run yet)" if missing else "")


def all_rows() -> list[Row]:
    """Return what was measured, as rows of the paper's figures; the recipe says where a row is from."""
    found = [*_inference(), *_certification(), *_uncertainty("mnist"), *_uncertainty("cifar10"), *_deep(), *_honest()]
    paper = RESULTS / "paper"
    tables = find(paper).tables if any(paper.glob("*/results.csv")) else []
    return found + [row | {"recipe": REPRODUCED[row["recipe"]]} for table in tables for row in table.rows]


def _axes(figure: str, dataset: str, method: str, likelihood: str, recipe: str, **more: Any) -> Row:
    return {
        "figure": figure, "dataset": dataset, "method": method, "likelihood": likelihood, "recipe": recipe,
        "network": "supplement" if dataset == "cifar10" else "mlp", "variation": "", "seed": 0, **more,
    }  # fmt: skip


def _table(folder: str) -> list[Row]:
    with (RESULTS / folder / "results.csv").open(newline="") as lines:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(lines)]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _inference() -> Iterator[Row]:
    """The study of inference: at temperature 1 and at the one that held-out images choose."""
    rows = [row for row in _table("inference-mnist") if row["certified"] != ""]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        for row in own:
            if row["temperature"] == 1.0:
                yield _inferred(row, "inference, T = 1")
        tempered = [row for row in own if row["likelihood"] == "ibp" and isinstance(row["validation_loss"], float)]
        if len(tempered) > 1:
            yield _inferred(min(tempered, key=lambda row: row["validation_loss"]), "inference, validated T")


def _inferred(row: Row, recipe: str) -> Row:
    figures = {"accuracy": row["accuracy"], "pgd": row["pgd"], "ibp": row["certified"]}
    return _axes("fig1", "mnist", row["method"], row["likelihood"], recipe, **figures)


def _certification() -> Iterator[Row]:
    """The study of certification: linear bounds and radii; its rules prove at least what Theorem 1 does with them."""
    for row in _table("certification-mnist"):
        recipe = f"certification, T = {row['temperature']:g}"
        likelihood = "ibp" if row["likelihood"] == "robust" else row["likelihood"]
        yield _axes("fig1", "mnist", row["method"], likelihood, recipe, lbp=row["elided, crown: certified"])
        yield _axes("fig2", "mnist", row["method"], likelihood, recipe, radius=row["predictor: mean radius"])


def _uncertainty(dataset: str) -> Iterator[Row]:
    for row in _table(f"uncertainty-{dataset}"):
        likelihood = "ibp" if row["likelihood"] == "robust" else row["likelihood"]
        recipe = f"uncertainty, T = {row['temperature']:g}"
        figures = {key: value for key, value in row.items() if key.startswith(("in_", "out_", "likelihood_ratio"))}
        yield _axes("fig3", dataset, row["method"], likelihood, recipe, accuracy=row["in_accuracy"], **figures)


def _deep() -> Iterator[Row]:
    """The study of deep networks, as far as it is about the paper's own; the most samples."""
    for task, dataset in (("mnist-paper", "mnist"), ("cifar10-paper", "cifar10")):
        row = max((row for row in _table("deep") if row["task"] == task), key=lambda row: row["samples"])
        yield _axes("fig1", dataset, "swag", "ibp", "deep", ibp=row["certified"], accuracy=row["accuracy"])


def _honest() -> Iterator[Row]:
    """The study of honest posteriors: the best form of each method, and the standard likelihood."""
    forms = {
        "noisy-adam, both": ("noisy-adam", "ibp", "honest"), "vogn, both": ("vogn", "ibp", "honest"),
        "bbb, learned prior": ("bbb", "ibp", "honest"),
        "noisy-adam, both, by weight": ("noisy-adam", "ibp", "honest, prior by weight"),
    }  # fmt: skip
    for dataset in ("mnist", "fashion-mnist"):
        for row in _table(f"honest-{dataset}"):
            method, _, kind = row["posterior"].partition(", ")
            form = (method, "standard", "honest") if kind == "standard" else forms.get(row["posterior"])
            if form is not None:
                figures = {"ibp": row["certified"], "accuracy": row["accuracy"], "seed": int(row["seed"])}
                yield _axes("fig1", dataset, *form, **figures)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
