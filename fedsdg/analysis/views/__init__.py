"""Views: functions from the summary of an experiment to a tidy frame.

The rows of a view have identity columns (``dataset``, ``skew``, ``scenario``, ``method``,
``metric`` and others), and numbers beside them: ``n``, ``mean``, ``low`` and ``high`` where seeds
were averaged. Tables, figures and the page print and draw views.
"""
