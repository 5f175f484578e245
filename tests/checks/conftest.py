"""What the tests of all checkers share."""

import pytest


@pytest.fixture
def answers_back():
    """answers_back(check, stub, solution, wrong): what every exercise's checker must do."""

    def run(check, stub, solution, wrong):
        assert check(stub).status == "todo"
        assert check(solution).status == "ok", check(solution)
        for answer in wrong:
            verdict = check(answer)
            assert verdict.status == "not yet", answer
            assert verdict.hint
            assert "stopped with" not in verdict.hint

    return run
