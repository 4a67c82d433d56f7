"""The study of honest posteriors, with networks that learn nothing in seconds."""

import csv
import json

import pytest

from certibayes.errors import InvalidInput
from certibayes.experiments import honest_study
from certibayes.experiments.honest_study import RECIPES, Evaluation, by_recipe, chosen_recipes, run_honest_study

CHOSEN = ("noisy-adam, both", "noisy-adam, standard", "laplace")


@pytest.fixture(scope="module")
def study(tmp_path_factory, few_digits_in_module):
    out = tmp_path_factory.mktemp("honest")
    recipes = {name: recipe for name, recipe in chosen_recipes(CHOSEN).items() if recipe.architecture == "mlp"}
    evaluation = Evaluation("inverted", samples=5, limit=40)
    return out, recipes, evaluation, run_honest_study(out, evaluation, recipes, dataset="digits", quick=True)


def test_every_recipe_has_its_rows(study):
    out, recipes, _, (rows, _) = study
    found = by_recipe(rows)
    for name, recipe in recipes.items():
        assert [row["seed"] for row in found[name]] == list(range(recipe.seeds))
        for row in found[name]:
            assert row["temperature"] == 1.0 and 0 <= row["certified"] <= row["accuracy"] <= 1
            assert row["elbo"] < 0 and row["n"] == 40
    assert len(found["mixture of these 5"]) == 1
    with (out / "results.csv").open() as file:
        assert [row["posterior"] for row in csv.DictReader(file)] == [row["posterior"] for row in rows]


def test_tables_and_figures(study):
    out, recipes, _, _ = study
    table = (out / "table.md").read_text()
    assert all(f"| {name} |" in table for name in recipes)
    assert " ± " in table
    assert (out / "worth.md").read_text().count("\n") == len(recipes) + 1 + 2
    assert {"honest.png", "pixels-noisy-adam-both.png"} <= {file.name for file in out.iterdir()}


def test_claims_are_decided_where_there_is_a_counterpart(study):
    out, _, _, (_, claims) = study
    assert {claim.method for claim in claims} == {"noisy-adam, both", "laplace, last layer"}
    assert "noisy-adam, both" in (out / "claims.md").read_text()


def test_what_is_finished_is_not_made_again(study, monkeypatch):
    out, recipes, evaluation, (rows, _) = study
    monkeypatch.setattr(honest_study, "fit_many", None)
    assert run_honest_study(out, evaluation, recipes, dataset="digits", quick=True)[0] == json.loads(json.dumps(rows))


def test_seeds_start_from_weights_of_their_own(study):
    rows = by_recipe(study[3][0])["noisy-adam, both"]
    assert len({row["digest"] for row in rows}) == len(rows)


def test_recipes_by_their_first_words():
    assert list(chosen_recipes(None)) == list(RECIPES)
    assert list(chosen_recipes(["vogn"])) == ["vogn, both", "vogn, standard"]
    with pytest.raises(InvalidInput, match=r"recipe.*'adam'"):
        chosen_recipes(["adam"])


def test_recipes_with_a_counterpart_have_one():
    for recipe in RECIPES.values():
        assert recipe.counterpart is None or RECIPES[recipe.counterpart].likelihood == "standard"
