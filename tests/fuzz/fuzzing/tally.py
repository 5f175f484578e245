"""Counts of outcomes, by family and by what was refused."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from fuzzing.cases import Case
from fuzzing.verdict import Outcome

KINDS = ("same", "tie", "refused", "finding", "no model")


class Tally:
    def __init__(self):
        self.cases = 0
        self.kinds: dict[str, Counter] = defaultdict(Counter)  # role -> kinds
        self.families: dict[str, Counter] = defaultdict(Counter)  # family -> (role, kind)
        self.reasons: dict[str, Counter] = defaultdict(Counter)  # role, kind -> sentences without numbers

    def add(self, case: Case, outcomes: dict[str, Outcome]) -> list[str]:
        """Count a case; return a line for each finding."""
        self.cases += 1
        lines = []
        for role, outcome in outcomes.items():
            self.kinds[role][outcome.kind] += 1
            self.families[case.family][role, outcome.kind] += 1
            if outcome.kind == "tie":
                self.reasons[f"{role} tie"][case.dtype] += 1
            if outcome.kind in ("refused", "no model"):
                said = re.sub(r"[-\d.]+", "#", outcome.why)[:150]
                self.reasons[f"{role} {outcome.kind}"][said] += 1
            if outcome.kind == "finding":
                phases = "+".join(case.phases) or "dense"
                about = f"{case.family}, {case.dtype}, {case.selector}, {case.mode}, {phases}"
                again = f"python tests/fuzz/run.py --seed {case.seed} --only {case.number}"
                lines.append(f"FINDING {role} ({about}): {outcome.why} | {again}")
        return lines

    @property
    def findings(self) -> int:
        return sum(kinds["finding"] for kinds in self.kinds.values())

    def share(self, role: str, kind: str = "same") -> float:
        return self.kinds[role][kind] / max(1, self.cases)

    def healthy(self) -> bool:
        """Whether enough is served and right for silence to mean something."""
        return self.share("attach") >= 0.6 and self.share("engine") >= 0.3

    def line(self) -> str:
        return "; ".join(
            f"{role}: " + ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind])
            for role, kinds in sorted(self.kinds.items())
        )

    def table(self) -> str:
        """Counts by family (attach, engine), then why things were refused."""
        rows = [f"{'family':20s}" + "".join(f"{kind:>16s}" for kind in KINDS)]
        for family, counts in sorted(self.families.items()):
            cells = (f"{counts['attach', kind]} / {counts['engine', kind]}" for kind in KINDS)
            rows.append(f"{family:20s}" + "".join(f"{cell:>16s}" for cell in cells))
        for about, reasons in sorted(self.reasons.items()):
            rows.append(f"{about}:")
            rows += [f"  {n:5d}  {said}" for said, n in reasons.most_common()]
        return "\n".join(rows)
