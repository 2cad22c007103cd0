"""Errors as a user meets them."""

from contextlib import contextmanager

import pytest


@contextmanager
def refused(*words, kind=ValueError, without=None):
    """Expect an error in one line that holds ``words``, and not ``without``."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    assert without is None or without not in message, message
