# SPDX-License-Identifier: Apache-2.0
"""Training steps on a GPU as rates: tokens per second, and the share of the GPU's peak that
the model's arithmetic takes (MFU)."""

import statistics
from dataclasses import dataclass

# Dense, in 1e12/s, by NVIDIA's data sheets; the first that is in a GPU's name counts.
PEAKS = (
    ("H200", {"bf16": 989, "tf32": 495, "f32": 67}),
    ("H100 NVL", {"bf16": 835, "tf32": 418, "f32": 60}),
    ("H100 PCIe", {"bf16": 756, "tf32": 378, "f32": 51}),
    ("H100", {"bf16": 989, "tf32": 495, "f32": 67}),
    ("A100", {"bf16": 312, "tf32": 156, "f32": 19.5}),
)
# 10 billion tokens in 90 minutes on 8 GPUs.
LLMC_RATE = 10e9 / (90 * 60) / 8
LLMC = (f"llm.c, as published, not measured here: GPT-2 124M in bf16 on 8 A100 (80 GB), 10 billion tokens in about\n"
        f"90 minutes, so about {LLMC_RATE:,.0f} tokens/s on each, at up to about 60% MFU "
        "(github.com/karpathy/llm.c, discussion 481)")


def peak_of(name, dtype):
    """Operations per second; None: not known."""
    return next((peaks[dtype] * 1e12 for part, peaks in PEAKS if part in name), None)


@dataclass
class Result:
    """The steps of one contender, by rounds."""
    model: str
    contender: str
    dtype: str
    rounds: list  # of seconds of each step

    @property
    def seconds(self):
        return [seconds for steps in self.rounds for seconds in steps]

    def tokens_per_second(self, sizes):
        return sizes.tokens / statistics.median(self.seconds)

    def mfu(self, sizes, peak):
        return sizes.flops / statistics.median(self.seconds) / peak


def row(result, sizes, peak):
    seconds = result.seconds
    share = f"{result.mfu(sizes, peak):7.1%}" if peak else "      -"
    return (f"{result.model:<5}  {result.dtype:<5}  {result.contender:<15}  {statistics.median(seconds) * 1e3:9.2f}  "
            f"{min(seconds) * 1e3:9.2f}  {max(seconds) * 1e3:9.2f}  {result.tokens_per_second(sizes):12,.0f}  {share}")


HEADING = (f"{'model':<5}  {'dtype':<5}  {'':<15}  {'median ms':>9}  {'min':>9}  {'max':>9}  {'tokens/s':>12}  "
           f"{'MFU':>7}")
