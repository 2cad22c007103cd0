"""The same kernels for rows on a GPU (triton): statistics, weighted sums and trimmed means.

Rows are tensors [M, d] of float16, bfloat16, float32 or float64, a row's numbers side by side in
memory, the rows apart by any stride; positions count in 64 bits. An `origin` [d] is subtracted
from every row as it is read. Nothing is added atomically, and what is cut where depends on M and d
alone, so results are the same from run to run.

Without a GPU they run, slowly, on the CPU in triton's interpreter: set TRITON_INTERPRET=1 before
triton is imported.
"""
