"""How the three products of a linear layer run in 8 or 4 bits: element types, scales, passes, what is kept.

Sources: TransformerEngine's recipes and "Low precision training" pages (delayed, current, block, MXFP8, NVFP4);
torchao `float8` (tensorwise, rowwise: backward casts its 16-bit tensors again); DeepSeek-V3, arXiv 2412.19437
(1x128 and 128x128 blocks); OCP Microscaling Formats v1.0 (1x32, e8m0 scales); arXiv 2509.25149 (NVFP4: 1x16, Hadamard
transform of what meets in dW, stochastic rounding of dY); cuBLAS, "FP8 data types": before compute capability 10.0 a
product takes both operands with the summed dim contiguous alone.

Ignored: the amax history and its update (one small kernel a step); the max over ranks of an amax (bytes); in
`rowwise-gw-hp` the one scale of the weight in dX.
"""

from __future__ import annotations

from dataclasses import dataclass

Tile = tuple[int, int]  # elements that share a scale: across and along the summed dim; 0 is all of them


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to run linear layers in few bits.

    forward, gradient  element types of x and w, and of dy
    scale              element type of a scale
    tile_x, tile_w     what shares a scale in x and dy, and in w
    amax               whether a pass of its own finds the largest element before the cast
    row_readings       how often the cast reads its source for a copy whose scales run along its rows
    column_readings    the same for scales along its columns, where the two are not one kernel
    saved              `quantised`: backward reads the copies that forward made; `source`: it casts again
    weights            `step`: cast once a step and kept beside the 16-bit weights; `use`: each time, not kept
    weight_gradient    whether dW runs in few bits too
    hadamard           what meets in dW is transformed first
    multiple           the dims of a weight must be multiples of this, else it keeps 16 bits
    architectures      whose matrix engine has it; () for all that have the element type
    """

    name: str
    forward: str
    gradient: str
    scale: str
    tile_x: Tile
    tile_w: Tile
    amax: bool = False
    row_readings: int = 1
    column_readings: int = 0
    saved: str = "quantised"
    weights: str = "step"
    weight_gradient: bool = True
    hadamard: bool = False
    multiple: int = 16
    architectures: tuple[str, ...] = ()

    def two_sided(self, weight: bool, architecture: str | None) -> bool:
        """Whether a product over the other dim of a tensor needs another copy of it."""
        across, along = self.tile_w if weight else self.tile_x
        return across != along or architecture not in ANY_LAYOUT


ANY_LAYOUT = ("Blackwell", "Blackwell Ultra")  # whose fp8 products take each operand in either order
_BLACKWELL = (*ANY_LAYOUT, "Blackwell GeForce")
_TENSOR: Tile = (0, 0)
_ROW: Tile = (1, 0)

RECIPES = {
    r.name: r
    for r in (
        Recipe("delayed", "fp8", "fp8_e5m2", "fp32", _TENSOR, _TENSOR),
        Recipe("current", "fp8", "fp8_e5m2", "fp32", _TENSOR, _TENSOR, amax=True),
        Recipe("tensorwise", "fp8", "fp8_e5m2", "fp32", _TENSOR, _TENSOR, amax=True, saved="source", weights="use"),
        Recipe("rowwise", "fp8", "fp8", "fp32", _ROW, _ROW, column_readings=2, saved="source", weights="use"),
        Recipe(
            "rowwise-gw-hp", "fp8", "fp8", "fp32", _ROW, _ROW, column_readings=2, saved="source", weights="use",
            weight_gradient=False,
        ),
        Recipe("blockwise", "fp8_block", "fp8_block", "fp32", (1, 128), (128, 128)),
        Recipe(
            "mxfp8", "mxfp8", "mxfp8", "e8m0", (1, 32), (1, 32), multiple=32, architectures=(*_BLACKWELL, "CDNA4"),
        ),
        Recipe(
            "nvfp4", "fp4", "fp4", "fp8", (1, 16), (1, 16), amax=True, column_readings=1, hadamard=True, multiple=32,
            architectures=_BLACKWELL,
        ),
    )
}  # fmt: skip
