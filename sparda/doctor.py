"""What will and will not run on this machine, and what to do about it: a line for each thing."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec

from sparda import costs, provenance, spec
from sparda.figures.catalogue import BuildError
from sparda.figures.gallery import find_browser
from sparda.machine import Gpu, Machine, probe
from sparda.units import format_bytes

NEEDS = {
    "real models": ("transformers", "tokenizers", "gguf", "accelerate"),
    "notebooks and figures": ("jupyterlab", "ipywidgets", "anywidget", "plotly", "pandas", "papermill"),
    "Triton kernels": ("triton",),
    "tests": ("pytest", "xdist", "hypothesis", "nbval", "ruff", "pyright"),
}
SHOWN = ("torch", "triton", "transformers", "numpy", "plotly", "ipywidgets", "jupyterlab", "papermill")
EXTENSIONS = {"@jupyter-widgets/jupyterlab-manager": "jupyterlab_widgets", "anywidget": "anywidget"}
CONTEXT = 131_072
LEAST_CAPABILITY = 8.0  # bf16 matrix units


def weights_problem() -> str | None:
    """What is wrong with the SmolLM2 weights and what to do about it; None if they are there and intact."""
    from sparda.models.load import packaged_file

    try:
        packaged_file("smollm2-135m")
    except (FileNotFoundError, ValueError) as error:
        return str(error)
    return None


def _line(subject: str, ok: bool, good: str, bad: str) -> str:
    return f"{'ok  ' if ok else 'no  '} {subject}: {good if ok else bad}"


def report(machine: Machine | None = None) -> str:
    """A line for each thing that chapters, figures, tests or the GPU build may need."""
    machine = machine or probe()
    version = platform.python_version()
    lines = [
        _line("Python", sys.version_info >= (3, 11), version, f"{version}; 3.11 or later is needed"),
        "ok   versions: "
        + ", ".join(f"{n} {v}" for n, v in provenance.versions(SHOWN).items() if n != "python"),
        *(gpu_lines(machine) if machine.gpus else [_no_gpu(machine)]),
        *host_lines(machine),
    ]
    for what, packages in NEEDS.items():
        missing = [name for name in packages if find_spec(name) is None]
        bad = f"{', '.join(missing)} missing; run `make -B install`"
        lines.append(_line(what, not missing, "installed", bad))
    problem = weights_problem()
    lines.append(_line("SmolLM2 weights", problem is None, "found and intact", str(problem)))
    lines += [_widgets(), _pictures(), *_verdict(machine)]
    return "\n".join(lines)


def _no_gpu(machine: Machine) -> str:
    return "no   GPU: none found; chapters run in profiles smoke and cpu, with the committed measurements"


def gpu_lines(machine: Machine) -> list[str]:
    """Of each GPU: whether torch can use it, and its link."""
    lines = []
    for gpu in machine.gpus:
        about = f"{gpu.name}, {gpu.memory_gib:.0f} GiB" + (f", driver {gpu.driver}" if gpu.driver else "")
        lines.append(_line("GPU", not (why := _unusable(gpu, machine)), about, f"{about}: {why}"))
        lines.append(_link(gpu))
    return lines


def _unusable(gpu: Gpu, machine: Machine) -> str:
    """Why a GPU that is there cannot be used, and what to do; empty if it can."""
    if not machine.torch_sees:
        if machine.torch_cuda is None:
            return "this torch is built for the CPU only; run `make -B install` without TORCH_BACKEND=cpu"
        built = f"torch, built for CUDA {machine.torch_cuda}, cannot use it"
        return f"{built}; look at the driver's age, and at CUDA_VISIBLE_DEVICES"
    if 0 < gpu.capability < LEAST_CAPABILITY:
        return f"compute capability {gpu.capability:.1f}; the bf16 kernels need {LEAST_CAPABILITY:.1f}"
    return ""


def _link(gpu: Gpu) -> str:
    if not gpu.generation:
        told = "the driver does not tell its generation, as is usual in a virtual machine"
        return f"no   link: {told}; `sparda bench` measures its rate and keeps it as link_gb_per_s"
    about = f"PCIe {gpu.generation}.0 x{gpu.width}, {gpu.link_gb_per_s:.0f} GB/s each way at most"
    narrow = (
        f"{about}; card and slot could do x{gpu.lanes}: offloaded decode is bound by this, try another slot"
    )
    return _line("link", gpu.width >= gpu.lanes, about, narrow)


def sequence_bytes() -> int:
    """Pinned host memory of one sequence of MiniCPM4.1-8B at 131,072 tokens; layer 0 stays on the GPU."""
    shape = spec.model("minicpm4.1-8b")
    return costs.kv_bytes(shape=shape, n_tokens=CONTEXT) * (shape.n_layers - 1) // shape.n_layers


def host_lines(machine: Machine) -> list[str]:
    """Host memory that can be pinned, and the limit on locking it."""
    if not machine.host_bytes:
        return ["no   host memory: it cannot be read here; a failed pinning will say how much it asked for"]
    fits = int(0.9 * machine.free_bytes) // sequence_bytes()
    free = f"{format_bytes(machine.free_bytes)} free of {format_bytes(machine.host_bytes)}"
    if not machine.gpus:
        return [f"ok   host memory: {free}"]
    room = f"{free}: room to pin {fits} sequence{'s' * (fits != 1)} of MiniCPM4.1-8B at {CONTEXT:,} tokens"
    small = f"{free}: too little for one; take a shorter context, or --share-host in `sparda bench`"
    lines = [_line("host memory", fits > 0, room, small)]
    limit = machine.lock_bytes
    if limit is not None and limit < machine.free_bytes:
        lines.append(
            f"no   locked memory: ulimit -l is {format_bytes(limit)}; most drivers pin past it, and if "
            "pinning fails, raise it (`ulimit -l unlimited`, or --ulimit memlock=-1 for a container)"
        )
    else:
        lines.append("ok   locked memory: no limit below the memory that is free")
    return lines


def _widgets() -> str:
    """Whether a JupyterLab of this environment can show widgets."""
    try:
        from jupyter_core.paths import jupyter_path
    except ModuleNotFoundError:
        return "no   widgets: JupyterLab is missing; run `make -B install`"
    from pathlib import Path

    rooms = [Path(room) for room in jupyter_path("labextensions")]
    missing = [
        package for name, package in EXTENSIONS.items() if not any((room / name).is_dir() for room in rooms)
    ]
    bad = (
        f"the extension of {', '.join(missing)} is missing, so a widget shows as a line of text; install it "
    )
    bad += "where JupyterLab itself is installed, or read the static figures in the gallery"
    return _line("widgets", not missing, "JupyterLab's extensions are there", bad)


def _pictures() -> str:
    browser = find_browser()
    missing = (
        "no Chromium" if browser is None else "" if find_spec("kaleido") else "the package kaleido is missing"
    )
    return _line("PNG pictures", not missing, str(browser), f"{missing}; the committed PNGs stay")


def _verdict(machine: Machine) -> list[str]:
    """What this comes to: which profiles, and which measurements of the GPU build."""
    usable = [gpu for gpu in machine.gpus if not _unusable(gpu, machine)]
    if not usable:
        small = "`sparda train` and `eval` on little text, `bench` as a check and no measurement"
        return [f"here: `make reproduce` (profile cpu), `make test`, {small}; no GPU build"]
    return [f"here: `make reproduce PROFILE=gpu`{_too_large(usable[0], machine)}"]


def _too_large(gpu: Gpu, machine: Machine) -> str:
    from sparda import remeasure

    try:
        steps = remeasure.read(provenance.ROOT).steps.values()
    except BuildError as error:
        return f"; but {error}"
    free = machine.free_bytes / 2**30
    left = [s.name for s in steps if gpu.memory_gib < s.gpu_gib or (machine.host_bytes and free < s.host_gib)]
    return f"; too large for it, so they keep what is committed: {', '.join(left)}" if left else ""
