"""Points from whatever yields them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from certibayes.data import Split, load
from certibayes.data.points import examples_of, features_of, points_for, points_of
from certibayes.errors import InvalidInput

X, Y = torch.rand(7, 3), torch.arange(7) % 2


class Rows(Dataset):
    """Yields dictionaries, as data sets of Hugging Face do in torch's format."""

    def __init__(self, **names):
        self.names = names

    def __len__(self):
        return 7

    def __getitem__(self, k):
        return {name: values[k] for name, values in self.names.items()}


class Duck:
    """A data set that is none of torch's, but has a length and can be indexed."""

    def __len__(self):
        return 7

    def __getitem__(self, k):
        return {"image": X[k], "label": Y[k]}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Frame:
    """What matters of a table of pandas, which is not installed everywhere."""

    def __init__(self, values, columns, dtypes=None):
        self.values, self.columns = values, columns
        self.dtypes = [values.dtype] * len(columns) if dtypes is None else dtypes

    def to_numpy(self, dtype=None):
        return self.values.astype(dtype)


@pytest.mark.parametrize(
    "source",
    [
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=3),
        Rows(pixel_values=X, labels=Y),
        DataLoader(Rows(x=X, y=Y, other=Y), batch_size=2),
        Duck(),
        Stream(),
        Split(X, Y),
    ],
    ids=lambda source: type(source).__name__,
)
def test_all_of_it_in_order(source):
    found = points_of(source)
    assert torch.equal(found.x, X) and torch.equal(found.y, Y) and found.features == ()


def test_tensors_and_arrays_stay_what_they_are():
    assert points_of(X, Y).x is X and points_of(X.numpy()).y is None
    assert points_of([[1.0, 2.0], [3.0, 4.0]]).x == [[1.0, 2.0], [3.0, 4.0]]


def test_a_data_set_is_its_test_split():
    diabetes = load("diabetes")
    found = points_of(diabetes)
    assert found.x is diabetes.test.inputs and found.features[2] == "bmi"


def test_a_table_of_pandas_has_names():
    values = np.arange(6).reshape(3, 2)
    found = points_of(Frame(values, ["a", "b"]), Y[:3])
    assert found.features == ("a", "b") and found.x.dtype == np.float64 and found.y is not None
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, 0.25], "c": [True, False]})
    assert points_of(frame).x.tolist() == [[1.0, 0.5, 1.0], [2.0, 0.25, 0.0]]


def test_data_sets_of_hugging_face():
    datasets = pytest.importorskip("datasets", reason="the real package: pip install datasets")
    plain = datasets.Dataset.from_dict({"features": X.tolist(), "label": Y.tolist()})
    found = points_of(plain.with_format("torch"))
    assert torch.equal(found.x, X) and torch.equal(found.y, Y)
    with pytest.raises(InvalidInput, match="with_format"):
        points_of(plain)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: points_of(TensorDataset(X, Y), Y), "in the TensorDataset already; leave y out"),
        (lambda: points_of(TensorDataset(X, Y, Y)), "3 parts, where a pair"),
        (lambda: points_of(TensorDataset(X)), "1 parts, where a pair"),
        (lambda: points_of(Rows(a=X, labels=Y)), "entries a, labels, of which none can be the inputs"),
        (lambda: points_of(Rows(x=X, inputs=X, y=Y)), "of which 2 can be the inputs"),
        (lambda: points_of(Rows(x=X)), "none can be the targets"),
        (lambda: points_of(Rows(x=X.tolist(), y=Y)), "with_format"),
        (lambda: points_of(Rows(x=X, y=list("abababa"))), "with_format"),
        (lambda: points_of(TensorDataset(X[:0], Y[:0])), "yields nothing"),
        (lambda: points_of([{"x": X[:3], "y": Y[:3]}, {"x": X[3:], "y": Y[3:]}]), "differ in shape.*not a batch"),
        (lambda: examples_of(X), "a batch is a Tensor, where a pair"),
        (lambda: points_of(Frame(np.zeros((1, 1)), ["a"], ["category"])), "'a' holds category.*get_dummies"),
        (lambda: points_of(Frame(np.array([[1.0, np.nan]]), ["a", "b"])), "row 0 has no finite value for 'b'"),
    ],
)
def test_what_is_not_clear_is_refused(make, words):
    with pytest.raises(InvalidInput, match=words):
        make()


def test_errors_of_a_data_set_itself_stay_what_they_are():
    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        points_of(Broken(X, Y))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["b", "a"], r"not in the order .* table\[list\(predictor.features\)\]"),
        (["a", "c"], "missing are b; unknown are c"),
        (["a"], r"missing are b\."),
        (["a", "b", "y"], r"on; unknown are y\."),
    ],
)
def test_columns_of_another_table_are_refused(columns, words):
    """By place they would be taken for others, and every prediction and proof be about something else."""
    owner = SimpleNamespace(features=("a", "b"))
    kinds = [np.dtype(float)] * len(columns)
    with pytest.raises(InvalidInput, match=words):
        points_for(owner, Frame(np.zeros((2, len(columns))), columns, kinds))


def test_columns_are_compared_where_both_have_names():
    frame = Frame(np.zeros((2, 2)), ["a", "b"], [np.dtype(float)] * 2)
    for owner in (SimpleNamespace(features=("a", "b")), SimpleNamespace(features=()), object()):
        assert points_for(owner, frame, Y[:2]).features == ("a", "b")
    assert points_for(SimpleNamespace(features=("a", "b")), X).x is X


def test_training_data_have_the_names_of_their_columns():
    frame = Frame(np.zeros((2, 2)), ["a", "b"], [np.dtype(float)] * 2)
    assert features_of((frame, Y[:2])) == features_of([frame, Y[:2]]) == ("a", "b")
    assert features_of(load("diabetes"))[:2] == ("age", "sex")
    assert features_of((X, Y)) == features_of(TensorDataset(X, Y)) == features_of(load("digits")) == ()
