"""The three small data sets that come with the package; ``embedded/README.md`` names their sources."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from certibayes.data import _idx as idx
from certibayes.data.dataset import UNIT_INTERVAL, DataSet, Split
from certibayes.data.files import Reading, read_file
from certibayes.errors import CorruptFile, InvalidInput

FOLDER = Path(__file__).with_name("embedded")


def digits() -> DataSet:
    """Read 10,000 training and 2,000 test images of MNIST: every 6th and every 5th of the originals.

    Returns:
        Inputs (N, 1, 28, 28) in [0, 1] and targets (N,) from 0 to 9.
    """
    train, test = (
        idx.read_split(FOLDER / f"{part}-images-idx3-ubyte.gz", FOLDER / f"{part}-labels-idx1-ubyte.gz")
        for part in ("train", "t10k")
    )
    return DataSet("digits", train, test, tuple("0123456789"), UNIT_INTERVAL)


def diabetes() -> DataSet:
    """Read the diabetes study of Efron et al. (2004): ten measurements and the disease a year later.

    Every fifth patient, from the first on, is in the test split. Features and target have mean 0 and standard
    deviation 1 over the training split; the target's own are 150.51841 and 77.18049, so that a prediction
    ``y`` is a progression of ``150.51841 + 77.18049 * y``.

    Returns:
        Inputs (353, 10) and (89, 10), targets (353, 1) and (89, 1).
    """
    path = FOLDER / "diabetes.csv"
    try:
        patients = np.loadtxt(path, delimiter=",", skiprows=1)
    except ValueError as error:
        raise CorruptFile(f"{path} is corrupt ({error}).") from error
    if patients.shape != (442, 11):
        raise CorruptFile(f"{path} is corrupt: its shape is {patients.shape}, not (442, 11).")
    in_test = np.arange(len(patients)) % 5 == 0
    train = patients[~in_test]
    standardized = (patients - train.mean(axis=0)) / train.std(axis=0)
    with path.open() as file:
        names = tuple(file.readline().strip().split(","))[:-1]
    return DataSet("diabetes", _table(standardized[~in_test]), _table(standardized[in_test]), (), None, names)


def breast_cancer() -> DataSet:
    """Read the Wisconsin diagnoses of Street et al. (1993): thirty measurements of cells, benign or malignant.

    Every fifth patient, from the first on, is in the test split. Measurements are in units of their own.

    Returns:
        Inputs (455, 30) and (114, 30), targets (455,) and (114,): 0 for benign, 1 for malignant.
    """
    path = FOLDER / "breast-cancer.csv"
    try:
        found = read_file(path, Reading("diagnosis", "classification"))
    except (InvalidInput, FileNotFoundError) as error:
        raise CorruptFile(f"{path} is corrupt ({error}).") from error
    if (len(found.train.inputs), len(found.test.inputs), len(found.features)) != (455, 114, 30):
        raise CorruptFile(f"{path} is corrupt: it does not hold 569 patients with thirty measurements.")
    return replace(found, name="breast-cancer")


def _table(rows: NDArray[np.float64]) -> Split:
    """Split the last column (N, 1) from those before it (N, d)."""
    values = torch.from_numpy(rows).to(torch.float32)
    return Split(values[:, :-1].contiguous(), values[:, -1:].contiguous())


EMBEDDED: dict[str, Callable[[], DataSet]] = {"digits": digits, "diabetes": diabetes, "breast-cancer": breast_cancer}
