"""``direct_sums`` sets what it says and gives the caller's settings back."""

import threading

import pytest
import torch

from certibayes.networks import direct_sums
from certibayes.support import arithmetic
from certibayes.support.arithmetic import PRECISIONS, half_convolutions, multiplies_bfloat16, repeatable_kernels


@pytest.fixture(autouse=True)
def precision_as_before():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_matmul_precision(precision):
    torch.set_float32_matmul_precision(precision)
    with direct_sums():
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == precision


def test_autocast_is_off_inside_and_on_again_outside():
    a = torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with direct_sums():
            assert not torch.is_autocast_enabled("cpu")
            assert (a @ a).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")
        assert (a @ a).dtype == torch.bfloat16


def test_nnpack_is_off_inside():
    before = torch._C._get_nnpack_enabled()
    with direct_sums():
        assert not torch._C._get_nnpack_enabled()
    assert torch._C._get_nnpack_enabled() == before


def test_settings_come_back_after_an_error():
    torch.set_float32_matmul_precision("medium")
    nnpack = torch._C._get_nnpack_enabled()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(KeyError), direct_sums():
            raise KeyError("anything")
        assert torch.is_autocast_enabled("cpu")
    assert torch.get_float32_matmul_precision() == "medium"
    assert torch._C._get_nnpack_enabled() == nnpack


BACKENDS = (torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul)


@pytest.fixture
def new_precision_settings():
    before = [backend.fp32_precision for backend in BACKENDS]
    yield
    for backend, precision in zip(BACKENDS, before, strict=True):
        backend.fp32_precision = precision


@pytest.mark.parametrize("which", range(len(BACKENDS)), ids=["conv", "matmul"])
def test_onednn_precision(which, new_precision_settings):
    """Since torch 2.9 each backend has a setting of its own; on CPUs with AMX this one rounds products to bfloat16."""
    BACKENDS[which].fp32_precision = "bf16"
    with direct_sums():
        assert BACKENDS[which].fp32_precision == "ieee"
    assert BACKENDS[which].fp32_precision == "bf16"


def test_blocks_nest():
    torch.set_float32_matmul_precision("high")
    with direct_sums():
        with direct_sums():
            pass
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.is_autocast_enabled("cpu")
    assert torch.get_float32_matmul_precision() == "high"


def test_threads_share_the_settings():
    """The last block to leave restores what the first found, whichever thread it is in."""
    torch.set_float32_matmul_precision("high")
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with direct_sums():
            inside.set()
            leave.wait(timeout=10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(timeout=10)
    with direct_sums():
        pass
    assert torch.get_float32_matmul_precision() == "highest"
    leave.set()
    thread.join()
    assert torch.get_float32_matmul_precision() == "high"


def products():
    """What decides how products are rounded on a CPU and on a GPU."""
    return torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cuda.matmul.fp32_precision


@pytest.mark.parametrize("precision", PRECISIONS)
def test_repeatable_kernels_give_settings_back(precision):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    with repeatable_kernels(precision):
        assert half_convolutions() == (precision == "medium")
        assert (products()[0] == "bf16") == (precision == "medium" and multiplies_bfloat16())
        if torch.cuda.is_available():
            assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
            assert (products()[1] == "tf32") == (precision != "highest")
        with direct_sums():
            assert torch.get_float32_matmul_precision() == "highest"
            assert products() == ("ieee", "ieee")
            assert not half_convolutions()
        assert (products()[0] == "bf16") == (precision == "medium" and multiplies_bfloat16())
        with repeatable_kernels("highest"):
            assert "bf16" not in products() and "tf32" not in products()
            assert not half_convolutions()
    assert not half_convolutions()
    after = torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    assert after == before


@pytest.mark.parametrize("of_caller", ["highest", "medium"])
def test_training_rounds_as_it_was_asked_to_and_not_as_the_caller_does(of_caller):
    torch.set_float32_matmul_precision(of_caller)
    before = products()
    with repeatable_kernels("highest"):
        assert "bf16" not in products() and "tf32" not in products()
    assert products() == before


@pytest.mark.parametrize("first_to_leave", ["training", "certificate"])
def test_training_in_another_thread_does_not_round_the_products_of_a_certificate(first_to_leave, monkeypatch):
    """Whoever begins or ends first: inside direct sums nothing is rounded, and afterwards all is as ever."""
    monkeypatch.setattr(arithmetic, "multiplies_bfloat16", lambda: True)
    before = products()
    training, leave = threading.Event(), threading.Event()

    def train():
        with repeatable_kernels("medium"):
            training.set()
            leave.wait(timeout=10)

    thread = threading.Thread(target=train)
    with direct_sums():
        thread.start()
        assert training.wait(timeout=10)
        assert products() == ("ieee", "ieee")
        if first_to_leave == "training":
            leave.set()
            thread.join()
            assert products() == ("ieee", "ieee")
    if first_to_leave == "certificate":
        assert products()[0] == "bf16"
        with direct_sums():
            assert products() == ("ieee", "ieee")
        leave.set()
        thread.join()
    assert products() == before
