"""Where updates lie and how they are read: in memory, in files, over processes, by kernels."""
