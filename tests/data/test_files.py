"""Data of one's own: what is read, and what is refused with which words."""

import numpy as np
import pytest
import torch

from certibayes.data import Reading, load, read_file
from certibayes.errors import CorruptFile, InvalidInput

HEADER = "age,bmi,outcome\n"
ROWS = "".join(f"{20 + k},{30.5 - k},{'ill' if k % 3 else 'well'}\n" for k in range(10))


def written(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_table_has_features_and_classes_by_name(tmp_path):
    found = load(written(tmp_path, HEADER + ROWS), target="outcome")
    assert found.features == ("age", "bmi") and found.classes == ("ill", "well") and found.own_units
    # Every fifth point, from the first on, is tested on.
    assert found.test.inputs.tolist() == [[20.0, 30.5], [25.0, 25.5]]
    assert found.test.targets.tolist() == [1, 0] and len(found.train.inputs) == 8


def test_a_column_says_what_is_tested_on(tmp_path):
    text = "x,y,split\n" + "".join(f"{k},{k % 2},{'test' if k > 3 else 'train'}\n" for k in range(6))
    found = load(written(tmp_path, text))
    assert found.features == ("x",) and found.test.inputs.flatten().tolist() == [4.0, 5.0]
    assert read_file(written(tmp_path, text), Reading(hold_out=False)).test.inputs.shape == (2, 1)


def test_all_points_are_tested_on_where_nothing_was_learned_from_them(tmp_path):
    found = read_file(written(tmp_path, HEADER + ROWS), Reading("outcome", hold_out=False))
    assert len(found.test.inputs) == 10 and len(found.train.inputs) == 0


def test_columns_and_classes_of_another_file_are_kept(tmp_path):
    path = written(tmp_path, "outcome,bmi,other,age\nwell,3,9,1\nwell,4,9,2\n")
    found = read_file(path, Reading("outcome", features=("age", "bmi"), classes=("ill", "well"), hold_out=False))
    assert found.test.inputs.tolist() == [[1.0, 3.0], [2.0, 4.0]] and found.test.targets.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("answers", "task", "classes"),
    [
        ("0 1 2 1", "classification", ("0", "1", "2")),
        ("1.0 0 1 0", "classification", ("0", "1")),
        ("a b a b", "classification", ("a", "b")),
        ("0.5 1 2 3", "regression", ()),
        ("-1.5 1e3 2 3", "regression", ()),
    ],
)
def test_targets_tell_what_they_are_where_that_is_clear(tmp_path, answers, task, classes):
    found = load(written(tmp_path, "x,y\n" + "".join(f"{k},{a}\n" for k, a in enumerate(answers.split()))))
    assert found.task == task and found.classes == classes
    assert found.train.targets.dtype == (torch.float32 if task == "regression" else torch.int64)


def test_labels_that_do_not_begin_at_zero_are_numbered(tmp_path):
    path = written(tmp_path, "x,y\n1,-1\n2,1\n3,-1\n")
    assert load(path, task="classification").classes == ("-1", "1")


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        (HEADER + ROWS, {}, "which column .* is to be predicted.*--target NAME.*age, bmi, outcome"),
        (HEADER + ROWS, {"target": "outcme"}, "no column 'outcme'; perhaps you mean outcome"),
        (HEADER + ROWS, {"target": "outcome", "task": "regression"}, "'well', which is no number"),
        (HEADER + ROWS, {"target": "outcome", "task": "ranking"}, "classification or regression, got 'ranking'"),
        ("a,y\n1,3\n2,7\n", {}, "from 3 to 7, which may be classes or a quantity.*--task"),
        ("a,y\n1,0\n2,0\n", {}, "one class alone"),
        ("a,y\n1,1\n,0\n", {}, "line 3 .* has no value for 'a'.*fill gaps"),
        ("a,y\n1,1\nNaN,0\n", {}, "line 3 .* has no value for 'a'"),
        ("a,y\n1,1\nred,0\n", {}, "'a' .* holds 'red' .line 3., which is no finite number.*categories as numbers"),
        ("a,y\n1,1\n1e999,0\n", {}, "no finite number"),
        ("a,y\n1,1\n1e300,0\n", {}, "as float32, hold NaN or infinite"),
        ("a,y\n1,1\n2,\n", {}, "line 3 .* has no 'y'"),
        ("1,2\n3,4\n", {}, "first line .* holds numbers, where the names"),
        ("a,a,y\n1,2,0\n", {}, "a name of its own; got 'a'"),
        ("a;b;y\n1,5;2;0\n", {}, "has no commas, but ';' between its words"),
        ("a\tb\ty\n1\t2\t0\n", {}, "Commas separate columns"),
        ("a,,y\n1,2,0\n", {}, "a name of its own; got ''"),
        ("y\n1\n0\n", {}, "no column beside the target"),
        ("a,y,split\n1,0,train\n2,1,dev\n", {}, "says train or test for each row, and not 'dev'"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, text, settings, words):
    with pytest.raises(InvalidInput, match=words):
        load(written(tmp_path, text), **settings)


@pytest.mark.parametrize(
    ("text", "words"), [("a,y\n", "no rows"), ("", "no rows"), ("a,y\n1,2,3\n", "line 2 .* has 3 values.* 2 names")]
)
def test_what_is_damaged_is_refused(tmp_path, text, words):
    with pytest.raises(CorruptFile, match=words):
        load(written(tmp_path, text))
    path = tmp_path / "latin.csv"
    path.write_bytes("größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(CorruptFile, match="UTF-8"):
        load(path)


def test_classes_that_a_run_does_not_know_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="'b', which is none of the classes a, c"):
        read_file(written(tmp_path, "x,y\n1,a\n2,b\n"), Reading(classes=("a", "c")))
    with pytest.raises(InvalidInput, match="no column 'age'"):
        read_file(written(tmp_path, "x,y\n1,a\n2,b\n"), Reading(features=("age",)))


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_arrays_by_name(tmp_path, suffix):
    x, y = np.arange(20, dtype=np.float64).reshape(10, 2), np.arange(10) % 3
    for names, train, test in (
        ({"x": x, "y": y}, 8, 2),
        ({"x_train": x, "y_train": y, "x_test": x[:3], "y_test": y[:3]}, 10, 3),
        ({"test_inputs": x, "test_labels": y}, 0, 10),
    ):
        path = save(tmp_path / f"data{suffix}", names)
        found = load(path)
        assert (len(found.train.inputs), len(found.test.inputs)) == (train, test)
        assert found.classes == ("0", "1", "2") and found.domain is None and found.own_units
        assert found.test.inputs.dtype == torch.float32
    found = load(save(tmp_path / f"data{suffix}", {"x": x, "answer": y + 0.5}), target="answer")
    assert found.task == "regression" and found.train.targets.shape == (8, 1)


def test_bytes_are_images(tmp_path):
    pixels = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4)
    found = load(save(tmp_path / "images.npz", {"x": pixels, "y": np.arange(5) % 2}))
    assert found.domain == (0.0, 1.0) and found.train.inputs.shape == (4, 1, 4, 4) and not found.own_units
    assert torch.equal(found.test.inputs[0, 0], torch.arange(16).view(4, 4) / 255)
    colored = np.zeros((5, 4, 6, 3), np.uint8)
    assert load(save(tmp_path / "rgb.npz", {"x": colored, "y": np.arange(5) % 2})).train.inputs.shape == (4, 3, 4, 6)


def test_a_pair_of_tensors(tmp_path):
    torch.save((torch.rand(10, 3), torch.arange(10) % 2), tmp_path / "pair.pt")
    assert load(tmp_path / "pair.pt").test.inputs.shape == (2, 3)


@pytest.mark.parametrize(
    ("parts", "settings", "words"),
    [
        ({"a": np.zeros(3)}, {}, "no inputs and targets.*It holds a"),
        ({"x": np.zeros((3, 2))}, {}, "the inputs but no targets"),
        ({"x_train": np.zeros((3, 2)), "y_test": np.zeros(3)}, {}, "train inputs but no targets"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4, int)}, {}, "3 x but 4 y"),
        ({"x": np.zeros(3), "y": np.zeros(3, int)}, {}, "one row for each point"),
        ({"x": np.full((3, 2), np.nan), "y": np.arange(3)}, {}, "NaN"),
        ({"x": np.zeros((3, 2)), "y": np.eye(3, dtype=int)}, {}, r"y.argmax\(1\)"),
        ({"x": np.zeros((3, 2)), "y": np.array([-1, 0, 1])}, {}, "whole numbers from 0 to C - 1.*--task regression"),
        ({"x": np.zeros((3, 2)), "y": np.array([0.5, 0, 1])}, {"task": "classification"}, "whole numbers from 0"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int)}, {}, "one class alone"),
        ({"x": np.zeros((3, 2), bool), "y": np.arange(3)}, {}, "numbers are needed"),
        ({"x": np.array([["a"], ["b"]]), "y": np.arange(2)}, {}, "cannot be read as a tensor"),
        ({"x": np.array([{}, {}]), "y": np.arange(2)}, {}, "would run code, so it is refused"),
        (
            {"x_train": np.zeros((3, 2)), "y_train": np.zeros(3), "x_test": np.zeros((3, 2)), "y_test": np.arange(3)},
            {},
            "floats in one part and of whole numbers in the other",
        ),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(tmp_path, parts, settings, words):
    with pytest.raises(InvalidInput, match=words):
        load(save(tmp_path / "data.npz", parts), **settings)


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(tmp_path / "absent.csv")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(CorruptFile, match=r"truncated or no file of np\.savez"):
        load(tmp_path / "bad.npz")
    with pytest.raises(InvalidInput, match=r"must end in \.csv, \.npz"):
        read_file(tmp_path / "data.xlsx")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(InvalidInput, match="where tensors by name are needed"):
        load(tmp_path / "tensor.pt")
    with pytest.raises(InvalidInput, match="digits has its own"):
        load("digits", target="label")


def test_statistics_of_columns_are_those_of_the_training_split():
    found = load("breast-cancer")
    mean, std = found.column_statistics()
    assert mean[0] == pytest.approx(found.train.inputs[:, 0].double().mean().item())
    assert std[3] == pytest.approx(found.train.inputs[:, 3].double().std(correction=0).item())
    assert "mean_radius" in repr(found) and found.classes == ("benign", "malignant")
    assert int(found.train.targets.sum() + found.test.targets.sum()) == 212
    with pytest.raises(InvalidInput, match="no columns"):
        load("digits").column_statistics()


def save(path, parts):
    if path.suffix == ".npz":
        np.savez(path, **parts)
    else:
        torch.save({name: torch.as_tensor(value) for name, value in parts.items()}, path)
    return path
