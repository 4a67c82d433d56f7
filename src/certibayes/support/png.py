"""Images as PNG files, and as addresses that hold the file, so that a page needs no other.

A PNG is a signature and chunks, each with its length, type, content and CRC-32 (ISO/IEC 15948): a header, the rows of
pixels as zlib compresses them, each behind the number of its filter, and an end.
"""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLORS = {1: 0, 3: 2}
"""The number PNG has for gray and for red, green and blue, by how many channels they have."""


def png(image: Tensor) -> bytes:
    """Write an image (1, H, W) or (3, H, W), with values from 0 for black to 1; others are taken to be the nearest."""
    channels, height, width = image.shape
    pixels = (image.detach().cpu().double().nan_to_num(0.0).clamp(0.0, 1.0) * 255).round().to(torch.uint8)
    rows = pixels.permute(1, 2, 0).reshape(height, width * channels)
    unfiltered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], 1)
    header = struct.pack(">IIBBBBB", width, height, 8, COLORS[channels], 0, 0, 0)
    content = zlib.compress(unfiltered.numpy().tobytes(), 9)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def image_source(content: bytes) -> str:
    """Return a PNG file as a data address."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
