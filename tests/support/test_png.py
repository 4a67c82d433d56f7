"""Images come back from their PNG files as an independent reader sees them."""

import io

import pytest
import torch

from certibayes.support.png import image_source, png


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 28, 28), (3, 32, 32), (1, 5, 300), (3, 7, 2)])
def test_an_image_comes_back(shape):
    image = pytest.importorskip("PIL.Image")
    torch.manual_seed(0)
    pixels = torch.rand(shape)
    read = image.open(io.BytesIO(png(pixels)))
    read.load()
    assert read.size == (shape[2], shape[1]) and read.mode == {1: "L", 3: "RGB"}[shape[0]]
    values = torch.tensor(list(read.convert("RGB").tobytes())).view(shape[1], shape[2], 3)[..., : shape[0]]
    assert torch.equal(values.permute(2, 0, 1), (pixels.double() * 255).round().long())


def test_values_outside_are_taken_to_be_the_nearest():
    inside, outside = torch.tensor([[[0.0, 1.0, 0.0]]]), torch.tensor([[[-3.0, 7.0, torch.nan]]])
    assert png(inside) == png(outside)


def test_an_address_holds_the_file():
    assert image_source(b"abc") == "data:image/png;base64,YWJj"
