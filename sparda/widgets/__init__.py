"""Widgets: thin live shells over the pure figures of ``sparda.figures``, one file per topic."""
