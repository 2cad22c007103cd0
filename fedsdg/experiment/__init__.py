"""An experiment: its config, its grid of runs, and what computes, stores and finds them again."""
