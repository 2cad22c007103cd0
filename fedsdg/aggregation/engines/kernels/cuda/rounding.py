"""From float64 to the dtype of a result (triton)."""

import triton
import triton.language as tl


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """x [...] float64 in DTYPE as torch rounds: to nearest, to 16 bits by way of float32.

    To bfloat16 by its bits: triton's interpreter would cut them off.
    """
    if DTYPE.primitive_bitwidth == 64:
        return x
    narrow = x.to(tl.float32)
    if DTYPE.is_bf16():
        bits = narrow.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        bits = tl.where(narrow == narrow, bits, 0x7FC0)
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return narrow.to(DTYPE)
