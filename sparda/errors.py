"""Which errors are told in one sentence, and which are bugs."""

from __future__ import annotations

import dis

TOLD = (ValueError, TypeError, KeyError, OSError, ImportError, MemoryError)


def sentence(error: BaseException) -> str | None:
    """What to tell the user; None for a bug, whose traceback is wanted.

    Our own code says what is wrong by a ``raise`` with a sentence. An error of the same kind that an
    operation met (``{}["x"]``, ``None + 1``), or that another library raised, was not foreseen.
    """
    if not isinstance(error, TOLD) or error.__traceback__ is None:
        return None
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    ours = last.tb_frame.f_globals.get("__name__", "").split(".")[0] == "sparda"
    raised = dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    said = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return said if ours and raised and " " in said else None
