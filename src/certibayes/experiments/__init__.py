"""A spec in, a record on disk out: training runs, evaluations, figures, reports."""

from certibayes.experiments.certification_study import RuleEvaluator, run_certification_study
from certibayes.experiments.compare import Comparison, compare_runs
from certibayes.experiments.demo import DemoResult, run_demo
from certibayes.experiments.engines import Engine, Local, Ray, make_engine
from certibayes.experiments.evaluate import Evaluation, evaluate
from certibayes.experiments.evaluator import Evaluator
from certibayes.experiments.figure_spec import Cell, FigureSpec, figure_names, load_figure
from certibayes.experiments.grid import Failure, run_cells, run_grid
from certibayes.experiments.inference_study import run_study
from certibayes.experiments.paper import FigureResult, run_figure
from certibayes.experiments.report import write_report
from certibayes.experiments.run import (
    add_figures,
    load_run,
    read_record,
    started_spec,
    train,
    trained_radius,
    training_data,
)
from certibayes.experiments.sharded import certify_with
from certibayes.experiments.spec import ALGORITHMS, LIKELIHOODS, TrainSpec
from certibayes.experiments.train_many import train_many
from certibayes.experiments.uncertainty_study import UncertaintyEvaluator, run_uncertainty_study
from certibayes.experiments.uncertainty_worth import worth_markdown, worth_of_uncertainty
from certibayes.experiments.zoo_entry import add_to_zoo

__all__ = [
    "ALGORITHMS",
    "LIKELIHOODS",
    "Cell",
    "Comparison",
    "DemoResult",
    "Engine",
    "Evaluation",
    "Evaluator",
    "Failure",
    "FigureResult",
    "FigureSpec",
    "Local",
    "Ray",
    "RuleEvaluator",
    "TrainSpec",
    "UncertaintyEvaluator",
    "add_figures",
    "add_to_zoo",
    "certify_with",
    "compare_runs",
    "evaluate",
    "figure_names",
    "load_figure",
    "load_run",
    "make_engine",
    "read_record",
    "run_cells",
    "run_certification_study",
    "run_demo",
    "run_figure",
    "run_grid",
    "run_study",
    "run_uncertainty_study",
    "started_spec",
    "train",
    "train_many",
    "trained_radius",
    "training_data",
    "worth_markdown",
    "worth_of_uncertainty",
    "write_report",
]
