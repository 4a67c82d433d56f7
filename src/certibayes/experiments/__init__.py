"""A spec in, a record on disk out: training runs, evaluations, figures, reports."""

from certibayes.experiments.certification_study import RuleEvaluator, run_certification_study
from certibayes.experiments.demo import DemoResult, run_demo
from certibayes.experiments.evaluate import Evaluation, evaluate
from certibayes.experiments.grid import Evaluator, run_grid
from certibayes.experiments.inference_study import run_study
from certibayes.experiments.run import (
    add_figures,
    load_run,
    read_record,
    started_spec,
    train,
    trained_radius,
    training_data,
)
from certibayes.experiments.spec import ALGORITHMS, LIKELIHOODS, TrainSpec
from certibayes.experiments.uncertainty_study import UncertaintyEvaluator, run_uncertainty_study
from certibayes.experiments.uncertainty_worth import worth_markdown, worth_of_uncertainty
from certibayes.experiments.zoo_entry import add_to_zoo

__all__ = [
    "ALGORITHMS",
    "LIKELIHOODS",
    "DemoResult",
    "Evaluation",
    "Evaluator",
    "RuleEvaluator",
    "TrainSpec",
    "UncertaintyEvaluator",
    "add_figures",
    "add_to_zoo",
    "evaluate",
    "load_run",
    "read_record",
    "run_certification_study",
    "run_demo",
    "run_grid",
    "run_study",
    "run_uncertainty_study",
    "started_spec",
    "train",
    "trained_radius",
    "training_data",
    "worth_markdown",
    "worth_of_uncertainty",
]
