"""One thread for every test: results depend on no core count, and tests can run side by side."""

import os

# Before numpy and torch start their pools, here and in every process that a test starts.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
