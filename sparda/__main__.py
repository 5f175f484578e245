"""``python -m sparda``: the same as the command ``sparda``."""

import sys

from sparda.cli import main

if __name__ == "__main__":
    sys.exit(main())
