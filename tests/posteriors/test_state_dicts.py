"""Weights that were saved elsewhere: read without running anything, every name in its place or refused."""

import copy
import json
import pickle

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.errors import CorruptFile, InvalidInput

from .cases import batch_norm_net, inputs, network


def states(count=3):
    return [batch_norm_net(seed).state_dict() for seed in range(count)]


def expected(count=3):
    return cb.Samples.from_modules([batch_norm_net(seed) for seed in range(count)]).predictor().digest


def digest(sources, net=None, **settings):
    return cb.Samples.from_state_dicts(net or batch_norm_net(9), sources, **settings).predictor().digest


class TestFiles:
    def test_all_formats_hold_the_same_networks(self, tmp_path):
        first, second, third = states()
        torch.save(first, tmp_path / "a.pt")
        torch.save(second, tmp_path / "b.pth", _use_new_zipfile_serialization=False)
        safetensors.torch.save_file(third, tmp_path / "c.safetensors")
        paths = [tmp_path / "a.pt", str(tmp_path / "b.pth"), tmp_path / "c.safetensors"]
        assert digest(paths) == digest(states()) == expected()

    def test_the_architecture_keeps_its_weights(self):
        net = batch_norm_net(9)
        before = copy.deepcopy(net.state_dict())
        digest(states(), net)
        assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())

    def test_predictions_are_the_mean_over_the_modules(self):
        x, nets = inputs(), [batch_norm_net(seed) for seed in range(3)]
        mean = torch.stack([torch.softmax(net(x).double(), -1) for net in nets]).mean(0)
        found = cb.Samples.from_state_dicts(batch_norm_net(9), states()).predictor().probabilities(x)
        torch.testing.assert_close(found.double(), mean, rtol=0, atol=1e-6)

    def test_nothing_in_a_file_is_run(self, tmp_path):
        class Bomb:
            def __reduce__(self):
                return (open, (str(tmp_path / "exploded"), "w"))

        for name, save in (("a.pt", torch.save), ("b.pt", lambda value, path: path.write_bytes(pickle.dumps(value)))):
            save({"0.weight": Bomb()}, tmp_path / name)
            with pytest.raises(InvalidInput, match=r"reading that would run the code.*torch\.save\(model\.state_dict"):
                digest([tmp_path / name])
        assert not (tmp_path / "exploded").exists()

    def test_a_whole_module_is_refused(self, tmp_path):
        torch.save(network(), tmp_path / "whole.pt")
        with pytest.raises(InvalidInput, match="holds more than tensors"):
            digest([tmp_path / "whole.pt"])

    @pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + bytes(50)])
    def test_what_is_no_such_file(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with pytest.raises((CorruptFile, InvalidInput), match=str(tmp_path)):
            digest([tmp_path / name])

    def test_a_truncated_file(self, tmp_path):
        torch.save(states()[0], tmp_path / "a.pt")
        whole = (tmp_path / "a.pt").read_bytes()
        (tmp_path / "a.pt").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CorruptFile, match="truncated"):
            digest([tmp_path / "a.pt"])

    def test_no_such_file(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no file .*none\.pt"):
            digest([tmp_path / "none.pt"])

    def test_a_file_of_another_kind(self, tmp_path):
        with pytest.raises(InvalidInput, match=r"must end in \.safetensors, \.pt or \.pth"):
            digest([tmp_path / "weights.h5"])


class TestNames:
    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.sampled_from(["module", "_orig_mod", "model", "net"]), min_size=1, max_size=3))
    def test_wrappers_are_taken_off_and_told(self, parts):
        prefix = "".join(f"{part}." for part in parts)
        wrapped = [{prefix + name: tensor for name, tensor in state.items()} for state in states()]
        found = cb.Samples.from_state_dicts(batch_norm_net(9), wrapped)
        assert found.predictor().digest == expected()
        assert all(f"{part}." in found.metadata["origin"] for part in parts) and "origin" in repr(found)

    def test_real_wrappers(self):
        nets = [batch_norm_net(seed) for seed in range(3)]
        made = [
            torch.compile(nets[0]).state_dict(),
            nn.DataParallel(nets[1]).state_dict(),
            torch.optim.swa_utils.AveragedModel(nets[2]).state_dict(),
        ]
        assert "_orig_mod.0.weight" in made[0] and "n_averaged" in made[2]
        assert digest(made) == expected()

    def test_a_part_that_was_compiled(self):
        net = batch_norm_net()
        compiled = {name.replace("0.", "0._orig_mod."): tensor for name, tensor in net.state_dict().items()}
        assert digest([compiled]) == expected(1)

    def test_names_that_fit_keep_a_shared_part(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.module = network(3)

            def forward(self, x):
                return self.module(x)

        found = cb.Samples.from_state_dicts(Net(), [Net().state_dict()], input_shape=(4,))
        assert "without" not in found.metadata["origin"]
        assert found.predictor().digest == cb.Point(Net(), input_shape=(4,)).predictor().digest

    def test_checkpoints_are_looked_into(self, tmp_path):
        for number, state in enumerate(states()):
            optimizer = torch.optim.Adam(batch_norm_net().parameters()).state_dict()
            checkpoint = {"epoch": 3, "model_state_dict": state, "optimizer": optimizer, "loss": 0.1}
            torch.save(checkpoint, tmp_path / f"{number}.pt")
        found = cb.Samples.from_state_dicts(batch_norm_net(9), [tmp_path / f"{i}.pt" for i in range(3)])
        assert found.predictor().digest == expected()
        assert "under 'model_state_dict'" in found.metadata["origin"]

    def test_two_sets_of_weights_are_not_guessed_between(self):
        first, second, _ = states()
        with pytest.raises(InvalidInput, match=r"under 'model' and under 'ema'.*Say which"):
            digest([{"model": first, "ema": second, "epoch": 1}])
        assert digest([{"model": first, "other": {"a.weight": torch.zeros(1)}, "epoch": 1}]) == expected(1)

    def test_a_misspelled_name_is_named_with_the_nearest(self):
        state = states()[0]
        state["3.wieght"] = state.pop("3.weight")
        with pytest.raises(InvalidInput) as error:
            digest([states()[0], state])
        assert "state dict 1 does not fit Sequential: the network has no '3.wieght'; perhaps you mean 3.weight" in str(
            error.value
        )
        assert "missing are '3.weight'" in str(error.value)

    def test_missing_and_unknown_names_are_counted(self):
        state = {f"layer{i}.weight": torch.zeros(1) for i in range(9)}
        with pytest.raises(InvalidInput, match=r"and 5 more.*missing are '0\.bias', .* and 4 more"):
            digest([state])

    def test_what_the_network_has_no_place_for_is_not_dropped(self):
        state = states()[0] | {"4.weight": torch.zeros(2, 3)}
        with pytest.raises(InvalidInput, match=r"the network has no '4\.weight'\.$"):
            digest([state])

    def test_statistics_are_not_left_as_they_were(self):
        state = states()[0]
        del state["1.running_mean"]
        with pytest.raises(InvalidInput, match=r"missing are '1\.running_mean'"):
            digest([state])

    def test_counters_of_batches_do_not_matter(self):
        state = states()[0]
        del state["1.num_batches_tracked"]
        assert digest([state]) == expected(1)

    def test_another_shape(self):
        state = states()[0]
        state["3.bias"] = torch.zeros(7)
        with pytest.raises(InvalidInput, match=r"'3\.bias' has shape \(7,\), but the network's is \(3,\)"):
            digest([state])

    def test_tied_weights_must_agree(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
                self.second.weight = self.first.weight

            def forward(self, x):
                return self.second(torch.relu(self.first(x)))

        state = {name: tensor.clone() for name, tensor in Tied().state_dict().items()}
        cb.Samples.from_state_dicts(Tied(), [state])
        state["first.weight"] += 1
        with pytest.raises(InvalidInput, match=r"'first\.weight'.*same tensor as another"):
            cb.Samples.from_state_dicts(Tied(), [state])

    def test_half_precision_takes_that_of_the_network(self):
        halves = [{name: t.half() if t.is_floating_point() else t for name, t in state.items()} for state in states()]
        assert cb.Samples.from_state_dicts(batch_norm_net(9), halves).predictor().dtype == torch.float32


class TestWhatIsNoStateDict:
    @pytest.mark.parametrize(
        "given, message",
        [
            ([], "at least one"),
            ("a.pt", "takes a list"),
            ({"0.weight": torch.zeros(1)}, "takes a list"),
            ([batch_norm_net()], "from_modules"),
            ([[torch.zeros(3)]], "is a list"),
            ([{"epoch": 3, "loss": 0.1}], "no dictionary of tensors by name, but 'epoch', 'loss'"),
            ([{}], "but nothing"),
        ],
    )
    def test_it_is_refused(self, given, message):
        with pytest.raises(InvalidInput, match=message):
            digest(given)

    def test_the_architecture_is_a_module(self):
        with pytest.raises(InvalidInput, match=r"as an nn\.Module, got Network"):
            cb.Samples.from_state_dicts(cb.networks.trace(batch_norm_net()), states())

    def test_weights_that_are_nan_are_told(self):
        state = states()[0]
        state["3.bias"] = torch.full((3,), torch.nan)
        with pytest.raises(InvalidInput, match="hold NaN"):
            digest([state])


class TestWeights:
    def test_a_network_that_counts_twice_does(self):
        x, nets = inputs(), [batch_norm_net(seed) for seed in range(3)]
        each = [torch.softmax(net(x).double(), -1) for net in nets]
        found = cb.Samples.from_modules(nets, weights=[5, 3, 2])
        mean = 0.5 * each[0] + 0.3 * each[1] + 0.2 * each[2]
        torch.testing.assert_close(found.predictor().probabilities(x).double(), mean, rtol=0, atol=1e-6)
        assert found.held == 10
        assert found.predictor().digest == digest(states(), weights=[5, 3, 2])

    @pytest.mark.parametrize("weights", [[0.5, 0.3, 0.2], [1, 0, 1], [1, -1, 1], [True, 1, 1], [1, 1], "abc"])
    def test_others_are_refused_with_advice(self, weights):
        with pytest.raises(InvalidInput, match=r"whole number|at least 1"):
            digest(states(), weights=weights)


def test_the_origin_is_stored(tmp_path):
    torch.save({f"module.{name}": tensor for name, tensor in states()[0].items()}, tmp_path / "a.pt")
    made = cb.Samples.from_state_dicts(batch_norm_net(), [tmp_path / "a.pt"])
    made.save(tmp_path / "run")
    assert cb.load(tmp_path / "run").metadata["origin"] == f"{tmp_path / 'a.pt'}, without the prefix 'module.'"
    json.dumps(made.metadata)
