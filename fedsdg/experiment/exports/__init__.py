"""The models of a run, as other libraries read them."""
