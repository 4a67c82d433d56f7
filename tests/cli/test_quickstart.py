"""The quickstart in Python and in the shell: one posterior, bit for bit."""

import json

import pytest

import certibayes as cb

from .cases import invoke

EPOCHS, HIDDEN, EPS = 1, 8, 0.1

COSINE = cb.Schedule("cosine", warmup=0.05)
"""What ``certibayes train`` takes unless an algorithm asks for a constant rate, which is the default of ``fit``."""


def fitted(algorithm, likelihood, **settings):
    """As a short script does it."""
    digits = cb.data.load("digits")
    net = cb.networks.mlp(784, [HIDDEN], 10, seed=0)
    return cb.fit(
        net, digits, algorithm=algorithm, likelihood=likelihood, epochs=EPOCHS, seed=0, progress=False, **settings
    )


SCRIPTS = {
    "vogn": lambda: fitted(cb.VOGN(), cb.RobustCategorical(eps=EPS), schedule=COSINE),
    "swag": lambda: fitted(cb.SWAG(every=20), cb.RobustCategorical(eps=EPS)),
    "map": lambda: fitted(cb.MAP(), cb.RobustCategorical(eps=EPS), schedule=COSINE),
}
FLAGS = {"swag": ("--every", 20)}


def trained(out, *more):
    settings = ("--hidden", HIDDEN, "--epochs", EPOCHS)
    result = invoke("train", "--dataset", "digits", *settings, "--out", out, "--json", *more)
    assert result.exit_code == 0, result.output
    return cb.load(out)


@pytest.mark.parametrize("algorithm", SCRIPTS)
def test_the_script_and_the_command_make_the_same_posterior(algorithm, tmp_path):
    stored = trained(tmp_path, "--algorithm", algorithm, "--likelihood", "ibp", "--eps", EPS, *FLAGS.get(algorithm, ()))
    posterior = SCRIPTS[algorithm]()
    for name, tensor in posterior.tensors().items():
        assert tensor.equal(stored.tensors()[name])
    assert posterior.predictor(samples=35, seed=1).digest == stored.predictor(samples=35, seed=1).digest
    for what in ("algorithm", "likelihood", "prior", "schedule", "temperature", "epochs", "batch_size", "seed"):
        assert json.loads(json.dumps(posterior.metadata[what])) == stored.metadata[what], what


def test_the_standard_likelihood_too(tmp_path):
    stored = trained(tmp_path, "--algorithm", "vogn", "--likelihood", "standard")
    posterior = fitted(cb.VOGN(), cb.Categorical(), schedule=COSINE)
    assert posterior.predictor(seed=1).digest == stored.predictor(seed=1).digest


def test_the_defaults_of_both_agree_where_flags_ask_for_them(tmp_path):
    """With fit's own schedule nothing has to be said in Python."""
    stored = trained(tmp_path, "--algorithm", "vogn", "--schedule", "constant", "--warmup", 0)
    posterior = fitted(cb.VOGN(), cb.RobustCategorical(eps=EPS))
    assert posterior.predictor(seed=1).digest == stored.predictor(seed=1).digest


def test_the_command_certifies_what_the_script_certifies(tmp_path):
    trained(tmp_path, "--algorithm", "vogn", "--likelihood", "ibp", "--eps", EPS)
    record = json.loads(invoke("certify", tmp_path, "--samples", 3, "--limit", 20, "--json").stdout)
    x, y = (part[:20] for part in cb.data.load("digits").test)
    predictor = SCRIPTS["vogn"]().predictor(samples=3, seed=0)
    result = cb.certify(predictor, x, y, eps=EPS)
    assert (record["digest"], record["certified"]) == (result.digest, result.certified_fraction)
    assert (record["eps"], record["eps_source"]) == (EPS, "run")
