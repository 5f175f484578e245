"""Write the workbench's JupyterLab settings into a folder, where the reader has not set others.

No news or update requests, and whole notebooks instead of windowed ones, so that jumping between cells and
widgets is steady.
"""

import json
import sys
from pathlib import Path

SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}

for name, values in SETTINGS.items():
    path = Path(sys.argv[1], "@jupyterlab", f"{name}.jupyterlab-settings")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
