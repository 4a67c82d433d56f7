"""certibayes train: every setting as a flag, from a file and from a preset."""

import json
import re

import pytest
from typer.testing import CliRunner

import certibayes as cb
from certibayes.cli import app
from certibayes.cli.train_options import hyperparameter_options
from certibayes.experiments import ALGORITHMS, TrainSpec
from certibayes.experiments.presets import PRESETS
from certibayes.experiments.settings import settings_of
from certibayes.experiments.spec import hyperparameters

pytestmark = pytest.mark.usefixtures("few_digits")

TINY = ["--hidden", "8", "--epochs", "1", "--batch-size", "50"]


def invoke(*arguments, columns=120):
    return CliRunner().invoke(app, ["train", *map(str, arguments)], env={"COLUMNS": str(columns)})


def trained(out, *arguments):
    result = invoke(*TINY, "--json", "--out", out, *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["spec"]


@pytest.mark.parametrize("columns", [80, 120])
def test_help_shows_every_flag_whole(columns):
    page = invoke("--help", columns=columns).output
    assert max(map(len, page.splitlines())) <= columns
    shown = set(re.findall(r"--[a-z0-9-]+(?= )", page))
    names = set(settings_of(TrainSpec)) | {name for algorithm in ALGORITHMS for name in hyperparameters(algorithm)}
    assert shown >= {"--" + name.replace("_", "-") for name in names}
    assert "…" not in page
    for name in (*PRESETS, *ALGORITHMS):
        assert name in page


def test_hyperparameters_of_the_same_name_share_a_flag():
    names = [option.name for option in hyperparameter_options()]
    assert len(names) == len(set(names)) and "betas" in names


def test_flags_reach_the_algorithm(tmp_path):
    spec = trained(tmp_path, "--betas", "0.8,0.9", "--initial-std", 0.02, "--warmup", 0, "--margins")
    assert spec["settings"] == {"betas": [0.8, 0.9], "initial_std": 0.02, "kinks": True}
    assert spec["warmup"] == 0 and spec["margins"]
    assert cb.load(tmp_path).metadata["algorithm"]["betas"] == [0.8, 0.9]


def test_flags_reach_the_adversary_and_the_augmentation(tmp_path):
    flags = ["--likelihood", "sabr", "--box-fraction", 0.2, "--attack-steps", 1, "--attack-step-size", 10]
    spec = trained(tmp_path, "--algorithm", "map", *flags, "--augment", "crop:1")
    assert spec["box_fraction"] == 0.2 and spec["alpha"] is None
    metadata = cb.load(tmp_path).metadata
    adversary = cb.SABR(0.2, cb.PGD(steps=1, step_size=10.0))
    assert metadata["likelihood"]["adversary"] == adversary.describe()
    assert metadata["likelihood"]["lower_bound"] is False
    assert metadata["augment"] == [{"name": "RandomCrop", "padding": 1, "fill": 0.0}]


def test_flags_win_over_the_file_and_the_run_can_be_repeated(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('algorithm = "swag"\nseed = 4\nmargins = true\n[settings]\nevery = 5\nrank = 3\n')
    spec = trained(tmp_path / "a", "--config", config, "--rank", 2, "--no-margins")
    assert spec["algorithm"] == "swag" and spec["seed"] == 4 and not spec["margins"]
    assert spec["settings"] == {"momentum": 0.9, "start": 0.5, "rank": 2, "every": 5, "optimizer": "sgd"}
    again = invoke("--config", tmp_path / "a" / "spec.toml", "--out", tmp_path / "b", "--json")
    assert json.loads(again.stdout)["spec"] == spec
    one, other = cb.load(tmp_path / "a"), cb.load(tmp_path / "b")
    for name, tensor in one.tensors().items():
        assert tensor.equal(other.tensors()[name])


def test_none_is_a_value_and_wins_over_the_file(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('algorithm = "swag"\nlr = 0.3\nepochs = 4\n[settings]\nevery = 500\n')
    result = invoke(*TINY[:2], "--config", config, "--every", "none", "--lr", "none", "--out", tmp_path / "a", "--json")
    assert result.exit_code == 0, result.output
    spec = json.loads(result.stdout)["spec"]
    assert spec["settings"]["every"] is None and spec["lr"] == 0.1


def test_a_preset_is_where_settings_start(tmp_path):
    spec = trained(tmp_path, "--preset", "paper-mnist", "--dataset", "digits", "--algorithm", "noisy-adam")
    assert spec["lr"] == 0.001 and spec["variance_scale"] == 10 and spec["ramp"] == 1.0 and spec["epochs"] == 1
    # The paper's path: the radius grows over all of training, and lam is constant.
    assert cb.load(tmp_path).metadata["likelihood"]["ramp"] == cb.LinearRamp().describe()


def test_a_deep_network_on_its_path_from_the_command_line(tmp_path):
    network = ("--architecture", "cnn5", "--channels", 2, "--no-normalize", "--init", "torch")
    path = ("--ramp-start", 0.1, "--ramp", 0.4, "--lam-ramp", 0.2, "--first-multiplier", 2, "--multiplier", 1.25)
    others = ("--tightness", 0.5, "--balance", 0.25, "--l1", 1e-5, "--clip", 10, "--batch-size", 100)
    command = ("train", "--dataset", "digits", "--algorithm", "map", "--epochs", 1, "--out", tmp_path, "--json")
    result = CliRunner().invoke(app, [str(word) for word in (*command, *network, *path, *others)])
    assert result.exit_code == 0, result.output
    metadata = cb.load(tmp_path).metadata
    assert metadata["likelihood"]["ramp"] == {
        "name": "Curriculum",
        "radius": {"name": "SmoothRamp", "start": 0.1, "end": 0.5},
        "lam": {"name": "LinearRamp", "start": 0.5, "end": 0.7, "first": 0.0},
        "multiplier": {"name": "LinearRamp", "start": 0.5, "end": 0.7, "first": 1.6},
        "tightness": 0.5,
        "balance": 0.25,
    }
    assert metadata["likelihood"]["p_eps"] == {"name": "TwoPoint", "eta": 0.125, "lam": 0.25}
    assert metadata["prior"]["l1"] == 1e-5 and metadata["clip"] == 10
    spec = json.loads(result.stdout)["spec"]
    assert spec["normalize"] is False and spec["init"] == "torch" and spec["channels"] == 2


def test_some_of_the_parameters_are_random(tmp_path):
    spec = trained(tmp_path, "--algorithm", "noisy-adam", "--stochastic", "last", "--map-lr", 0.01)
    assert spec["stochastic"] == "last" and spec["map_lr"] == 0.01
    expected = {"random": ["3.weight", "3.bias"], "map": ["1.weight", "1.bias"], "map_lr": 0.01}
    assert cb.load(tmp_path).metadata["stochastic"] == expected
    shown = CliRunner().invoke(app, ["info", str(tmp_path)], env={"COLUMNS": "120"}).output
    assert re.search(r"stochastic\s+random\s+3.weight, 3.bias\s+map\s+1.weight, 1.bias\s+map_lr\s+0.01", shown)


def test_random_parameters_that_are_not_there_leave_no_files(tmp_path):
    for words, message in (("5", "no parameter matches '5'"), ("", "stochastic is empty")):
        result = invoke(*TINY, "--algorithm", "noisy-adam", "--stochastic", words, "--out", tmp_path / "a")
        assert result.exit_code == 1 and message in " ".join(result.output.split())
    assert not (tmp_path / "a").exists()


def test_a_path_that_never_ends_leaves_no_files(tmp_path):
    result = invoke(*TINY, "--ramp", 0.95, "--out", tmp_path / "a")
    assert result.exit_code == 1 and "would never be reached" in " ".join(result.output.split())
    assert not (tmp_path / "a").exists()


def test_a_start_and_a_radius_from_the_command_line(tmp_path):
    spec = trained(tmp_path, "--start-epochs", 1, "--start-lr", 0.1, "--radius", "exponential", "--quadrature", 2)
    assert spec["start_epochs"] == 1
    metadata = cb.load(tmp_path).metadata
    assert metadata["start"] == {"epochs": 1, "lr": 0.1}
    assert metadata["likelihood"]["p_eps"]["name"] == "Exponential"


def test_a_chosen_temperature_is_reported_with_its_curve(tmp_path):
    # One that is trained once for all candidates.
    command = (*TINY, "--algorithm", "laplace", "--temperature", "validate")
    result = invoke(*command, "--out", tmp_path / "a")
    assert result.exit_code == 0, result.output
    chosen = cb.load(tmp_path / "a").metadata["temperature"]
    assert f"chosen temperature {chosen:g}" in result.stdout
    assert "validation loss" in result.stdout and "0.001" in result.stdout
    record = json.loads(invoke(*command, "--out", tmp_path / "b", "--json").stdout)
    assert record["temperature"] == chosen
    assert chosen in [row["temperature"] for row in record["temperature_curve"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rank", 3], "vogn has no hyperparameter 'rank'; it has lr, betas, initial_std"),
        (["--preset", "paper"], "paper-mnist"),
        (["--preset", "paper-cifar", "--algorithm", "map"], "only for swag, noisy-adam, vogn"),
        (["--temperature", "cold"], "validate"),
        (["--config", "missing.toml"], "there is no file missing.toml"),
        (["--schedule", "magic"], "constant, cosine, exponential"),
        (["--betas", "0.9,1.5"], "decays"),
    ],
)
def test_what_cannot_be_is_explained_in_a_sentence_and_leaves_nothing(arguments, words, tmp_path):
    result = invoke(*TINY, "--out", tmp_path / "run", *arguments)
    assert result.exit_code == 1, result.output
    assert words in result.stderr and "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [("epoch = 3", "perhaps you mean epochs"), ("eps = 'far'", "eps"), ("eps = '8/0'", "eps"), ("eps = = 1", "line 1")],
)
def test_a_wrong_file_is_explained_in_a_sentence(text, words, tmp_path):
    (tmp_path / "config.toml").write_text(text)
    result = invoke(*TINY, "--config", tmp_path / "config.toml", "--out", tmp_path / "run")
    assert result.exit_code == 1, result.output
    assert words in result.stderr and "config.toml" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--betas", "0.9"], ["--epochs", "ten"], ["--hidden", "wide"], ["--rank", "x"]])
def test_text_that_is_no_value_is_wrong_usage(arguments, tmp_path):
    result = invoke("--out", tmp_path / "run", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--device", "mars"],
        ["--dataset", "mnist", "--data-dir", "nowhere"],
        ["--preset", "paper"],
        ["--algorithm", "sghmc", "--epochs", 1],
    ],
    ids=["device", "data", "preset", "room"],
)
def test_after_a_mistake_the_corrected_command_trains(arguments, tmp_path):
    wrong = invoke(*TINY, "--out", tmp_path / "run", *arguments)
    assert wrong.exit_code == 1 and "Traceback" not in wrong.output
    assert "no unfinished run" in invoke("--out", tmp_path / "run", "--resume").stderr
    trained(tmp_path / "run", "--algorithm", "map")


@pytest.fixture
def unfinished(tmp_path):
    """A run that was stopped before its first checkpoint."""
    spec = TrainSpec(hidden=(8,), algorithm="swag", epochs=2, batch_size=50, settings={"every": 5}).resolved()
    (tmp_path / "started.json").write_text(json.dumps({"spec": spec.to_json()}))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epochs", 6], "--epochs 6, but it was started with 2"),
        (["--hidden", "8,4"], "--hidden 8,4, but it was started with 8"),
        (["--algorithm", "vogn"], "--algorithm vogn, but it was started with swag"),
        (["--every", "none"], "--every none, but it was started with 5"),
        (["--initial-std", 0.1], "--initial-std 0.1, which swag does not know"),
        (["--preset", "paper-mnist"], "--dataset mnist, but it was started with digits"),
        (["--overwrite"], "--overwrite replaces it"),
    ],
    ids=str,
)
def test_a_resumed_run_takes_no_other_settings(arguments, words, unfinished):
    result = invoke("--out", unfinished, "--resume", *arguments)
    assert result.exit_code == 1, result.output
    assert words in result.stderr and "--overwrite" in result.stderr
    assert [path.name for path in unfinished.iterdir()] == ["started.json"]


def test_a_resumed_run_takes_settings_that_agree(unfinished):
    agreeing = ["--epochs", 2, "--hidden", 8, "--lr", "none", "--every", 5, "--algorithm", "swag", "--device", "cpu"]
    result = invoke("--out", unfinished, "--resume", "--json", *agreeing)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["spec"]["settings"]["every"] == 5


def test_a_default_temperature_below_one_is_reported_with_its_reason(tmp_path):
    words = "temperature 0.01, the default of vogn under a likelihood of bounds: at 1, Bayes' rule, its weights vary"
    assert words in invoke(*TINY, "--algorithm", "vogn", "--out", tmp_path / "vogn").stdout
    assert cb.load(tmp_path / "vogn").metadata["temperature"] == 0.01
    for name, arguments in {"map": ["--algorithm", "map"], "chosen": ["--temperature", 1]}.items():
        assert "Bayes' rule" not in invoke(*TINY, *arguments, "--out", tmp_path / name).stdout
    assert json.loads(invoke(*TINY, "--out", tmp_path / "json", "--json").stdout)["temperature"] == 0.01


def test_help_says_what_an_epoch_of_hmc_is():
    page = " ".join(re.sub("[│╭╮╰╯─]", " ", invoke("--help").output).split())
    assert "for hmc, trajectories that are kept, and its burn-in comes on top" in page
