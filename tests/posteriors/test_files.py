"""Files: written whole or not at all, checked when read, and never pickled."""

import ast
import errno
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import CorruptFile, RunExists, UnsupportedLayer
from certibayes.support.files import FORMAT, read_tensors, write_atomically, write_tensors

from .cases import KINDS, inputs, network, posterior

SOURCE = Path(cb.__file__).parent


@pytest.fixture
def saved(tmp_path):
    return posterior("diagonal gaussian").save(tmp_path / "run")


def rewrite_header(file, change):
    """Change the record inside a safetensors file and leave the rest alone."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    record = json.loads(header["__metadata__"]["certibayes"])
    change(record)
    header["__metadata__"]["certibayes"] = json.dumps(record)
    encoded = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])


@pytest.mark.parametrize("kind", KINDS)
class TestRoundTrip:
    def test_predictors_are_the_same_bits(self, kind, tmp_path):
        made, x = posterior(kind), inputs()
        made.save(tmp_path)
        loaded = cb.load(tmp_path)
        one, other = made.predictor(3, seed=2), loaded.predictor(3, seed=2)
        assert one.digest == other.digest
        assert torch.equal(one(x), other(x))

    def test_tensors_buffers_graph_and_metadata_are_the_same(self, kind, tmp_path):
        made = posterior(kind)
        made.save(tmp_path)
        loaded = cb.load(tmp_path)
        assert type(loaded) is type(made)
        assert loaded.graph == made.graph
        assert loaded.tensors().keys() == made.tensors().keys()
        assert all(torch.equal(t, loaded.tensors()[name]) for name, t in made.tensors().items())
        assert loaded.buffers.keys() == made.buffers.keys()
        assert all(torch.equal(t, loaded.buffers[name]) for name, t in made.buffers.items())
        assert {key: loaded.metadata[key] for key in made.metadata} == made.metadata

    def test_a_second_round_trip_changes_nothing(self, kind, tmp_path):
        posterior(kind).save(tmp_path / "one")
        cb.load(tmp_path / "one").save(tmp_path / "two")
        assert cb.load(tmp_path / "two").metadata == cb.load(tmp_path / "one").metadata
        assert cb.load(tmp_path / "two").predictor(2).digest == cb.load(tmp_path / "one").predictor(2).digest


def test_float64_stays_float64(tmp_path):
    cb.Point(network().double()).save(tmp_path)
    loaded = cb.load(tmp_path)
    assert loaded.params["1.weight"].dtype == torch.float64


def test_images_and_preprocessing_are_part_of_the_file(tmp_path):
    net = nn.Sequential(cb.networks.Normalize([0.2, 0.3, 0.4], [1.0, 2.0, 3.0]), cb.networks.cnn_small((3, 12, 12), 4))
    made = cb.Point(net, input_shape=(3, 12, 12))
    made.save(tmp_path)
    x = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cb.load(tmp_path).predictor()(x), torch.log_softmax(net(x), -1))


def test_the_file_may_be_named_itself(saved):
    assert isinstance(cb.load(saved), cb.DiagonalGaussian)


def test_versions_are_recorded(saved):
    assert cb.load(saved).metadata["versions"]["certibayes"] == cb.__version__


def test_loading_needs_no_class_of_the_users(tmp_path):
    """A module defined in a script, saved there, is loaded by a process that has never heard of it."""
    script = tmp_path / "user.py"
    script.write_text(
        "import torch, certibayes as cb\n"
        "class Mine(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        torch.manual_seed(0)\n"
        "        self.a, self.b = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)\n"
        "    def forward(self, x):\n"
        "        h = torch.tanh(self.a(x))\n"
        "        return self.b(torch.relu(h) + h)\n"
        f"cb.Point(Mine()).save({str(tmp_path / 'run')!r})\n"
        "print(*Mine()(torch.full((1, 4), 0.5))[0].tolist())\n"
    )
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    expected = torch.tensor([[float(value) for value in printed.split()]])
    found = cb.load(tmp_path / "run").predictor().sample_outputs(torch.full((1, 4), 0.5))[0]
    torch.testing.assert_close(found, expected)


class TestOverwriting:
    def test_it_is_refused(self, saved):
        before = saved.read_bytes()
        with pytest.raises(RunExists, match="overwrite=True"):
            posterior("point").save(saved.parent)
        assert saved.read_bytes() == before

    def test_unless_it_is_asked_for(self, saved):
        posterior("point").save(saved.parent, overwrite=True)
        assert isinstance(cb.load(saved), cb.Point)

    def test_run_exists_is_a_file_exists_error(self, saved):
        with pytest.raises(FileExistsError):
            posterior("point").save(saved.parent)


class TestDamage:
    def test_nothing_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no posterior at"):
            cb.load(tmp_path / "nowhere")

    def test_an_empty_directory(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"posterior\.safetensors"):
            cb.load(tmp_path)

    @pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
    def test_a_truncated_file(self, saved, kept):
        content = saved.read_bytes()
        saved.write_bytes(content[: int(len(content) * kept)] if isinstance(kept, float) else content[:kept])
        with pytest.raises(CorruptFile, match="truncated"):
            cb.load(saved)

    @pytest.mark.parametrize("place", [-1, -20, -100])
    def test_a_flipped_bit_in_a_tensor(self, saved, place):
        content = bytearray(saved.read_bytes())
        content[place] ^= 1
        saved.write_bytes(bytes(content))
        with pytest.raises(CorruptFile, match="changed after it was written"):
            cb.load(saved)

    def test_a_flipped_byte_anywhere_is_noticed(self, saved):
        """Wherever it falls: header, record or tensors."""
        content = saved.read_bytes()
        for place in range(0, len(content), 61):
            damaged = bytearray(content)
            damaged[place] ^= 4
            saved.write_bytes(bytes(damaged))
            try:
                loaded = cb.load(saved)
            except CorruptFile:
                continue
            # What is left are changes that mean nothing, such as a space in the header.
            saved.write_bytes(content)
            original = cb.load(saved)
            assert loaded.predictor(2).digest == original.predictor(2).digest
            assert loaded.metadata == original.metadata

    @pytest.mark.parametrize(
        "change",
        [
            lambda header: header["record"]["metadata"].update(algorithm="better"),
            lambda header: header["record"].update(posterior="Point"),
            lambda header: header["record"]["graph"]["nodes"].pop(),
            lambda header: header.update(record_sha256="0" * 64),
            lambda header: header.update(tensors_sha256="0" * 64),
        ],
        ids=["metadata", "kind", "graph", "record digest", "tensor digest"],
    )
    def test_a_changed_record(self, saved, change):
        rewrite_header(saved, change)
        with pytest.raises(CorruptFile, match="changed after it was written"):
            cb.load(saved)

    @pytest.mark.parametrize("key", ["format", "kind", "record", "record_sha256", "tensors_sha256"])
    def test_an_incomplete_record(self, saved, key):
        rewrite_header(saved, lambda header: header.pop(key))
        with pytest.raises(CorruptFile, match="cannot be read"):
            cb.load(saved)

    def test_a_record_that_is_not_a_record(self, tmp_path):
        for text in ("not json", "[]", "3", '"text"', "null"):
            content = safetensors.torch.save({"a": torch.ones(1)}, {"certibayes": text})
            (tmp_path / "posterior.safetensors").write_bytes(content)
            with pytest.raises(CorruptFile, match="cannot be read"):
                cb.load(tmp_path)

    def test_a_newer_format(self, saved):
        rewrite_header(saved, lambda header: header.update(format=FORMAT + 1))
        with pytest.raises(CorruptFile, match="Upgrade certibayes"):
            cb.load(saved)

    def test_an_older_format(self, saved):
        rewrite_header(saved, lambda header: header.update(format=1))
        words = "was written by an earlier version of certibayes, whose posteriors this one does not read. Train again."
        with pytest.raises(CorruptFile, match=re.escape(words)):
            cb.load(saved)

    def test_a_safetensors_file_of_another_program(self, tmp_path):
        file = tmp_path / "posterior.safetensors"
        safetensors.torch.save_file({"weight": torch.ones(2)}, file)
        with pytest.raises(CorruptFile, match="not written by certibayes"):
            cb.load(file)

    def test_a_file_of_another_kind(self, tmp_path):
        write_tensors(tmp_path / "posterior.safetensors", "checkpoint", {"a": torch.ones(1)}, {})
        with pytest.raises(CorruptFile, match="is a checkpoint, not a posterior"):
            cb.load(tmp_path)

    def test_a_kind_of_posterior_that_is_not_known(self, tmp_path):
        write_tensors(tmp_path / "posterior.safetensors", "posterior", {"a": torch.ones(1)}, {"posterior": "Oracle"})
        with pytest.raises(CorruptFile, match="Oracle"):
            cb.load(tmp_path)

    @pytest.mark.parametrize("record", [{"posterior": "Point"}, ["a list"]], ids=["no graph", "a list"])
    def test_a_valid_file_without_a_network(self, tmp_path, record):
        write_tensors(tmp_path / "posterior.safetensors", "posterior", {"a": torch.ones(1)}, record)
        with pytest.raises(CorruptFile):
            cb.load(tmp_path)

    def test_an_operation_that_is_not_known_here(self, tmp_path):
        made = posterior("point")
        file = made.save(tmp_path)
        tensors, record = read_tensors(file, "posterior")
        record["graph"]["nodes"][1]["operation"] = {"type": "Attention"}
        write_tensors(file, "posterior", tensors, record)
        with pytest.raises(UnsupportedLayer, match="Attention"):
            cb.load(tmp_path)

    def test_a_lost_tensor_is_named(self, tmp_path):
        file = posterior("point").save(tmp_path)
        tensors, record = read_tensors(file, "posterior")
        del tensors["params:1.bias"]
        write_tensors(file, "posterior", tensors, record)
        with pytest.raises(CorruptFile, match=r"1\.bias"):
            cb.load(tmp_path)


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


class TestAFullDisk:
    @pytest.fixture(params=["at the end", "while writing", "while renaming"])
    def disk(self, request, monkeypatch):
        """A disk that is full at one of three moments."""
        if request.param == "at the end":
            monkeypatch.setattr(os, "fsync", full_disk)
        elif request.param == "while renaming":
            monkeypatch.setattr(Path, "replace", full_disk)
        else:
            real = Path.open

            def open_full(self, mode="r", *arguments, **settings):
                file = real(self, mode, *arguments, **settings)
                if mode == "wb":
                    file.write(b"half of it")
                    file.close()
                    full_disk()
                return file

            monkeypatch.setattr(Path, "open", open_full)
        return monkeypatch

    def test_the_old_file_survives(self, saved, disk):
        before = saved.read_bytes()
        with pytest.raises(OSError, match="unchanged") as caught:
            posterior("point").save(saved.parent, overwrite=True)
        assert caught.value.errno == errno.ENOSPC
        disk.undo()
        assert saved.read_bytes() == before
        assert isinstance(cb.load(saved), cb.DiagonalGaussian)
        assert [file.name for file in saved.parent.iterdir()] == [saved.name]

    def test_nothing_is_left_where_nothing_was(self, tmp_path, disk):
        with pytest.raises(OSError, match="No space left"):
            posterior("point").save(tmp_path / "new")
        disk.undo()
        assert list((tmp_path / "new").iterdir()) == []


def test_a_stale_partial_file_is_no_obstacle(tmp_path):
    (tmp_path / "posterior.safetensors.partial").write_bytes(b"left by a crash")
    posterior("point").save(tmp_path)
    assert isinstance(cb.load(tmp_path), cb.Point)


def test_write_atomically_makes_the_directory(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "file", b"content")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.empty(0, 4),
        torch.arange(6).reshape(2, 3).T,
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(1).expand(5, 1),
        torch.tensor([float("nan"), float("inf"), -0.0]),
    ],
    ids=["scalar", "empty", "transposed", "bool", "bfloat16", "expanded", "odd floats"],
)
def test_any_tensor_can_be_stored(tensor, tmp_path):
    write_tensors(tmp_path / "file", "test", {"x": tensor}, {"note": 1})
    tensors, record = read_tensors(tmp_path / "file", "test")
    assert tensors["x"].dtype == tensor.dtype
    torch.testing.assert_close(tensors["x"], tensor, equal_nan=True, rtol=0, atol=0)
    assert record == {"note": 1}


def test_tensors_that_share_memory_can_be_stored(tmp_path):
    whole = torch.arange(6.0)
    write_tensors(tmp_path / "file", "test", {"a": whole[:3], "b": whole[2:], "c": whole}, {})
    tensors, _ = read_tensors(tmp_path / "file", "test")
    assert torch.equal(tensors["b"], whole[2:])


def pickling(tree):
    """Yield what in a syntax tree could read or write a pickle."""
    for node in ast.walk(tree):
        imported = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        room = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        modules = {"pickle", "cPickle", "_pickle", "shelve", "marshal", "joblib", "dill", "cloudpickle"}
        if modules & {name.partition(".")[0] for name in [*imported, room]} or "ForkingPickler" in imported:
            yield ast.unparse(node)
        if room.partition(".")[0] == "torch" and {"load", "save", "serialization"} & set(imported):
            yield ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(
            ("torch.load", "torch.save", "torch.serial")
        ):
            yield ast.unparse(node)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield ast.unparse(node)


def test_no_pickle_is_ever_read_or_written():
    """numpy.load is allowed only without pickle; torch.load in one place, for others' files, tensors alone."""
    trees = {str(file.relative_to(SOURCE)): ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")}
    found = [(name, what) for name, tree in trees.items() for what in pickling(tree)]
    assert found == [("support/tensor_files.py", "torch.load")]
    calls = [node for node in ast.walk(trees["support/tensor_files.py"]) if isinstance(node, ast.Call)]
    (load,) = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert {word.arg: ast.unparse(word.value) for word in load.keywords}["weights_only"] == "True"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from multiprocessing.reduction import ForkingPickler",
        "from pickle import loads", "import numpy, dill.session", "from torch import load",
        "torch.load(x)", "reader = torch.save", "from torch.serialization import load", "torch.serialization.load(x)",
        "numpy.load(path, allow_pickle=True)", "numpy.load(path, allow_pickle=chosen)",
    ],
)  # fmt: skip
def test_pickles_would_be_found(code):
    assert list(pickling(ast.parse(code)))


def test_loading_a_pickle_does_not_run_it(tmp_path):
    """The classic: a pickle that runs a command when it is loaded."""
    witness = tmp_path / "witness"
    payload = b"cos\nsystem\n(S'touch " + str(witness).encode() + b"'\ntR."
    (tmp_path / "posterior.safetensors").write_bytes(payload)
    with pytest.raises(CorruptFile):
        cb.load(tmp_path)
    assert not witness.exists()
