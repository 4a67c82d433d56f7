"""How many points a call works on at once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.support.memory import ON_CPU, POINTS_ON_CPU, bytes_allowed, points_at_once, shared_gpu

CPU = torch.device("cpu")


@given(st.integers(0, 2**40))
def test_a_batch_has_a_point_and_no_more_than_a_cpu_has_use_for(bytes_per_point):
    count = points_at_once(CPU, bytes_per_point)
    assert 1 <= count <= POINTS_ON_CPU
    assert count == 1 or count * bytes_per_point <= ON_CPU


class Properties:
    total_memory = 2**36


def test_a_gpu_takes_a_quarter_of_its_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    gpu = torch.device("cuda")
    assert bytes_allowed(gpu) == 2**34 and bytes_allowed(gpu, on_cpu=1) == 2**34
    assert points_at_once(gpu, 2**20) == 2**14
    assert points_at_once(gpu, 2**40) == 1


def test_inside_a_grid_it_is_a_smaller_part_and_what_is_kept_is_given_back(monkeypatch):
    given_back = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(True))
    gpu = torch.device("cuda")
    with shared_gpu():
        assert bytes_allowed(gpu) == 2**31 and bytes_allowed(CPU) == ON_CPU
        assert not given_back
    assert given_back and bytes_allowed(gpu) == 2**34
