from pathlib import Path

import pytest

from certibayes.data import _cifar_binary as cifar_binary

from .tiny_files import cifar_bytes


@pytest.fixture
def cifar_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with CIFAR-10 in batches of four."""
    monkeypatch.setattr(cifar_binary, "RECORDS_PER_BATCH", 4)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(cifar_bytes(4))
    (folder / "batches.meta.txt").write_text("\n".join(f"class{k}" for k in range(10)) + "\n\n")
    return tmp_path
