"""The core without any optional package: what works, and what says how to install the rest."""

import json
import subprocess
import sys
import textwrap

import pytest

OPTIONAL = ("matplotlib", "jinja2", "scipy", "torchmetrics", "arviz_stats", "onnx", "ray")

BLOCKED = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def python(code, blocked=True):
    """Run code in a process of its own and return the last line that it prints, as JSON."""
    program = (BLOCKED if blocked else "") + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


MODULES = ("certibayes", "certibayes.cli", "certibayes.evaluation")


@pytest.fixture(scope="module")
def brought():
    """Optional packages that are there after each import, one after the other in one process."""
    return python(
        f"""
        import importlib, json, sys
        found = {{}}
        for module in {MODULES!r}:
            importlib.import_module(module)
            found[module] = [name for name in {OPTIONAL!r} if name in sys.modules]
        print(json.dumps(found))
        """,
        blocked=False,
    )


@pytest.mark.parametrize("module", MODULES)
def test_importing_brings_no_optional_package(module, brought):
    assert brought[module] == []


NEED_FIGURES = {
    "demo": ("demo", "--quick"),
    **{
        study: ("reproduce", study, "--dataset", "digits", "--quick")
        for study in ("inference", "certification", "uncertainty", "fig1")
    },
}
CALLS = {
    "evaluation": "evaluation.auroc(torch.rand(3), torch.rand(3))",
    "svhn": "svhn_mat.read_mat(pathlib.Path('train_32x32.mat'))",
    "onnx": "cb.networks.from_onnx('net.onnx')",
    "cluster": "engines.make_engine('ray', workers=None, device=None)",
    "statistical": "concentration.clopper_pearson(concentration.Sums.of(torch.ones(9, 1)), 0.1)",
}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """What the library, functions and commands say and do, all in one process without optional packages."""
    folder = tmp_path_factory.mktemp("extras")
    run = folder / "run"
    commands = {
        "train": ("train", "--hidden", 8, "--epochs", 1, "--batch-size", 500, "--out", run, "--json"),
        "certify": ("certify", run, "--limit", 5, "--samples", 2, "--json"),
        "attack": ("attack", run, "--limit", 5, "--samples", 2, "--steps", 2, "--json"),
        "info": ("info", run, "--json"),
        "evaluate": ("evaluate", run, "--limit", 5),
        "compare": ("compare", run, run),
        "report": ("report", run),
        **{name: (*command, "--out", folder / name) for name, command in NEED_FIGURES.items()},
    }
    found = python(
        f"""
        import json, pathlib
        import torch
        import certibayes as cb
        from certibayes import errors, evaluation
        from certibayes.cli import app
        from certibayes.data import _svhn_mat as svhn_mat
        from certibayes.experiments import engines
        from certibayes.statistical import concentration
        from typer.testing import CliRunner

        x, y = (part[:200] for part in cb.data.load("digits").train)
        likelihood = cb.RobustCategorical(eps=0.02)
        posterior = cb.fit(
            cb.networks.mlp(784, [8], 10), (x, y), algorithm=cb.VOGN(), likelihood=likelihood, epochs=2, progress=False
        )
        posterior.save({str(folder / "library")!r})
        loaded = cb.load({str(folder / "library")!r}).predictor(3)
        result = cb.certify(loaded, x[:5], y[:5], eps=0.01)
        result.save({str(folder / "certificate.json")!r})
        attacked = cb.attack(loaded, x[:5], y[:5], eps=0.01)
        same = loaded.digest == posterior.predictor(3).digest
        below = result.certified_fraction <= attacked.robust_accuracy
        library = [same, below, len(cb.uncertainty(loaded, x[:5]))]

        messages = {{}}
        for extra, call in {CALLS!r}.items():
            try:
                eval(call)
            except errors.MissingPackage as error:
                messages[extra] = str(error)

        answers = {{}}
        for name, arguments in { ({name: list(map(str, parts)) for name, parts in commands.items()})!r}.items():
            result = CliRunner().invoke(app, arguments, env={{"COLUMNS": "200"}})
            answers[name] = [result.exit_code, result.stdout, result.stderr]
        print(json.dumps({{"library": library, "messages": messages, "answers": answers}}))
        """
    )
    return {**found, "written": [path.name for path in folder.iterdir()]}


@pytest.fixture
def answers(without):
    """Exit code, standard output and standard error of commands."""
    return without["answers"]


def test_the_library_works_without_them(without):
    assert without["library"] == [True, True, 5]


def test_the_commands_that_need_none_work(answers):
    for name in ("train", "certify", "attack", "info", "compare"):
        code, _, error = answers[name]
        assert code == 0, error
    assert json.loads(answers["certify"][1])["n"] == json.loads(answers["attack"][1])["n"] == 5


@pytest.mark.parametrize("name", NEED_FIGURES)
def test_a_command_that_needs_one_says_so_before_it_works(name, answers, without):
    code, _, error = answers[name]
    assert code == 1 and name not in without["written"]
    assert "matplotlib" in error and 'pip install "certibayes[figures]"' in error


def test_evaluate_needs_torchmetrics(answers):
    code, _, error = answers["evaluate"]
    assert code == 1 and "torchmetrics" in error and 'pip install "certibayes[evaluation]"' in error


def test_report_needs_jinja(answers):
    code, _, error = answers["report"]
    assert code == 1 and "jinja2" in error and 'pip install "certibayes[figures]"' in error


@pytest.mark.parametrize("extra", CALLS)
def test_a_function_that_needs_one_names_the_extra(extra, without):
    assert f'pip install "certibayes[{extra}]"' in without["messages"][extra]
