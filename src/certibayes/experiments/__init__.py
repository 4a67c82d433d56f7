"""A spec in, a record on disk out: training runs, evaluations, figures, reports."""

from certibayes.experiments.demo import DemoResult, run_demo
from certibayes.experiments.evaluate import Evaluation, evaluate
from certibayes.experiments.run import add_figures, load_run, read_record, started_spec, train
from certibayes.experiments.spec import ALGORITHMS, LIKELIHOODS, TrainSpec

__all__ = [
    "ALGORITHMS",
    "LIKELIHOODS",
    "DemoResult",
    "Evaluation",
    "TrainSpec",
    "add_figures",
    "evaluate",
    "load_run",
    "read_record",
    "run_demo",
    "started_spec",
    "train",
]
