#!/usr/bin/env python3
# Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
"""Makes the reference data of the quantization tests: raw blocks and what the `gguf` package makes of them, and back.

    pip install numpy gguf==0.19.0
    python make.py

For each format NAME this writes, beside itself, NAME.blocks.bin (raw blocks as in a GGUF file) and NAME.f32.bin (the
little-endian F32 values of all blocks, from gguf.quants.dequantize). Blocks are random bytes, with these changes: the
16-bit floats of a block run through a list of extremes (both zeros, smallest and largest subnormal and normal numbers of
both signs) and random finite numbers, never infinity or NaN; the first three blocks have all other bytes 0x00, all 0xFF, and
counting up. F16 and BF16 files are rows of such numbers.

weights.f32.bin holds numbers to quantize, in blocks of 32, and NAME.quantized.bin what gguf.quants.quantize makes of them:
random blocks of many magnitudes, and blocks where something is special (see `weights`). The seeds are fixed: the output is
the same every time.
"""

import pathlib

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

EXTREMES = [0x0000, 0x8000, 0x0001, 0x8001, 0x0200, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]

# name: (number of blocks, byte offsets of the F16 fields in a block)
FORMATS = {
    "Q4_0": (40, [0]),
    "Q4_1": (40, [0, 2]),
    "Q5_0": (40, [0]),
    "Q8_0": (40, [0]),
    "Q4_K": (16, [0, 2]),
    "Q6_K": (16, [208]),
}


def finite_halfs(random, count, exponent_mask):
    """Random finite 16-bit floats whose exponent field is `exponent_mask`."""
    halfs = random.integers(0, 1 << 16, count).astype(np.uint16)
    return np.where((halfs & exponent_mask) == exponent_mask, halfs & 0xBFFF, halfs).astype(np.uint16)


def blocks_of(random, name):
    count, fields = FORMATS[name]
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    blocks = random.integers(0, 256, (count, size)).astype(np.uint8)
    blocks[0], blocks[1], blocks[2] = 0x00, 0xFF, np.arange(size, dtype=np.uint8)
    for index, field in enumerate(fields):
        halfs = finite_halfs(random, count, 0x7C00)
        # The second field meets the extremes in another order than the first.
        order = random.permutation(len(EXTREMES)) if index else np.arange(len(EXTREMES))
        halfs[3 : 3 + len(EXTREMES)] = np.array(EXTREMES, np.uint16)[order]
        blocks[:, field : field + 2] = halfs.astype("<u2").reshape(-1, 1).view(np.uint8)
    return blocks


def weights(random):
    magnitudes = 10.0 ** random.uniform(-9, 4, (48, 1))
    blocks = (random.standard_normal((64, 32)) * np.concatenate([magnitudes, np.ones((16, 1))])).astype(np.float32)
    blocks[48] = 0  # no scale
    blocks[49] = 0.7  # no range
    blocks[50] = -0.7
    blocks[51] = np.where(np.arange(32) == 17, -3, 0)  # one number
    blocks[52] = np.arange(-16, 16) / 2  # halves between the codes of Q4_0
    blocks[53] = np.arange(32) / 2 - 0.5  # halves between the codes of Q4_1
    blocks[54] = np.concatenate([np.arange(-15, 16) / 2, [127]])  # halves between the codes of Q8_0
    blocks[55] = np.concatenate([[5, -5], random.uniform(-4, 4, 30)])  # the largest magnitude twice: the first counts
    blocks[56] = np.concatenate([[-5, 5], random.uniform(-4, 4, 30)])
    blocks[57] = abs(blocks[57])
    blocks[58] = -abs(blocks[58])
    blocks[59] = np.nextafter(np.float32(0.5), np.float32(0))  # below a half
    blocks[59, 0] = 127
    return blocks


def main():
    here = pathlib.Path(__file__).parent
    random = np.random.default_rng(20)
    data = {name: blocks_of(random, name) for name in FORMATS}
    for name, exponent_mask in (("F16", 0x7C00), ("BF16", 0x7F80)):
        numbers = finite_halfs(random, 1000, exponent_mask)
        numbers[: len(EXTREMES)] = EXTREMES
        data[name] = numbers.astype("<u2").view(np.uint8)
    for name, raw in data.items():
        values = gguf.quants.dequantize(raw, GGMLQuantizationType[name]).astype("<f4")
        assert np.isfinite(values).all()
        (here / f"{name}.blocks.bin").write_bytes(raw.tobytes())
        (here / f"{name}.f32.bin").write_bytes(values.tobytes())
    numbers = weights(np.random.default_rng(21))
    (here / "weights.f32.bin").write_bytes(numbers.astype("<f4").tobytes())
    for name in ("F16", "BF16", "Q4_0", "Q4_1", "Q8_0"):
        quantized = gguf.quants.quantize(numbers, GGMLQuantizationType[name])
        (here / f"{name}.quantized.bin").write_bytes(quantized.tobytes())


if __name__ == "__main__":
    main()
