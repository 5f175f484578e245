"""environment.yml, pyproject.toml and constraints.txt say one thing, and only `sparda` is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml

Requirement = pytest.importorskip("packaging.requirements").Requirement


def pyproject(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def direct_requirements(root):
    project = pyproject(root)["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + [line for name in extras if name != "all" for line in extras[name]]
    return {requirement.name: requirement for requirement in map(Requirement, lines)}


def pins(root):
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {pin.name: pin for pin in map(Requirement, (line for line in lines if line and line[0] != "#"))}


def test_every_direct_dependency_is_pinned_inside_its_range(root):
    pinned = pins(root)
    for name, requirement in direct_requirements(root).items():
        assert name in pinned, f"add {name}==VERSION to constraints.txt"
        (version,) = (spec.version for spec in pinned[name].specifier)
        assert requirement.specifier.contains(version), (
            f"{name}: {version} is outside {requirement.specifier}"
        )


def test_a_pin_is_an_exact_version_and_nothing_else(root):
    for pin in pins(root).values():
        assert [spec.operator for spec in pin.specifier] == ["=="], f"{pin}: write name==version"
        assert pin.url is None, f"{pin}: no addresses in constraints.txt"


def test_the_extra_all_names_every_other_extra(root):
    extras = pyproject(root)["project"]["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.name == "sparda"
    assert everything.extras == set(extras) - {"all"}


def test_the_conda_environment_leaves_the_list_of_packages_to_pyproject(root):
    environment = yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))
    python, pip, pip_section = environment["dependencies"]
    wanted = Requirement(python)
    assert wanted.name == "python"
    assert str(wanted.specifier) == pyproject(root)["project"]["requires-python"]
    assert pip == "pip"
    assert pip_section == {"pip": ["-e .[all]"]}


def test_every_package_folder_is_listed_for_installation(root):
    setup = pyproject(root)["tool"]["setuptools"]
    found = {
        ".".join(path.parent.relative_to(root).parts)
        for room in ("sparda", "kernels")
        for path in (root / room).rglob("__init__.py")
    }
    found = {
        name.replace("kernels", "sparda.kernels", 1) if name[:7] == "kernels" else name for name in found
    }
    assert set(setup["packages"]) == found
    assert setup["package-dir"]["sparda.kernels"] == "kernels"


@pytest.mark.timeout(120)
def test_a_wheel_installs_one_top_level_package(root, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"  # setuptools writes build/ beside what it builds
    for name in ("sparda", "kernels"):
        shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    build = "import sys, setuptools.build_meta as b; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"sparda"}
    assert "sparda/kernels/__init__.py" in names


def test_importing_sparda_alone_imports_nothing_heavy():
    light = "sparda, sparda.figures.style, sparda.checks, sparda.widgets.runtime, sparda.cli"
    code = f"import sys, {light}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"plotly", "pandas", "ipywidgets", "transformers", "triton", "papermill"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize(
    ("own", "before", "policy"),
    [(None, "", "passive"), ("active", "", "active"), (None, "import torch", "None")],
    ids=["unset", "a user's own", "torch is imported already"],
)
def test_idle_threads_sleep_unless_the_user_says_otherwise(own, before, policy):
    """torch reads the policy as it is imported, so sparda sets it, whichever command starts it."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": own} if own else {}
    code = f"{before}\nimport os, sparda.cli\nprint(os.environ.get('OMP_WAIT_POLICY'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == [policy]
