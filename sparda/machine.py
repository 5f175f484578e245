"""What this machine is: GPU, link, host memory and its limits. ``sparda doctor`` judges what is found."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

QUERY = (
    "name", "memory.total", "driver_version", "compute_cap", "pcie.link.gen.max", "pcie.link.width.current",
    "pcie.link.width.max",
)  # fmt: skip
LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # after line coding, each way


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver describes it; numbers that the driver does not tell are 0.

    generation   : of PCIe, the highest that card and slot agree on (idle, the link runs slower)
    width, lanes : lanes in use, and the most that card and slot could use
    """

    name: str
    memory_gib: float = 0.0
    driver: str = ""
    capability: float = 0.0
    generation: int = 0
    width: int = 0
    lanes: int = 0

    @property
    def link_gb_per_s(self) -> float:
        """What the link carries each way at most; 0 where it is not known."""
        return LANE_GB_PER_S.get(self.generation, 0.0) * self.width


@dataclass(frozen=True)
class Machine:
    """gpus : that the driver lists; torch_sees : how many of them torch can use

    host_bytes, free_bytes : of memory, a container's limit counted; 0 where unknown
    lock_bytes             : most memory that a process may lock (ulimit -l); None: no limit, or unknown
    """

    gpus: tuple[Gpu, ...] = ()
    torch_sees: int = 0
    torch_cuda: str | None = None
    host_bytes: int = 0
    free_bytes: int = 0
    lock_bytes: int | None = None


def probe() -> Machine:
    """Look at this machine; nothing is changed, and no GPU is needed."""
    import torch

    from sparda.kernels.host_memory import machine_memory

    total, free = machine_memory()
    sees = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = list_gpus() or tuple(_by_torch(index) for index in range(sees))
    return Machine(gpus, sees, torch.version.cuda, total, free, lock_limit())


def list_gpus() -> tuple[Gpu, ...]:
    """The GPUs that nvidia-smi lists; none without it."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(parse(line) for line in said.splitlines() if line.strip())


def parse(line: str) -> Gpu:
    """One line of nvidia-smi.

    >>> parse("NVIDIA H200, 143771, 580.159.04, 9.0, 5, 16, 16").link_gb_per_s
    63.008
    >>> parse("NVIDIA H200, 143771, 580.159.04, 9.0, [N/A], [N/A], [N/A]").generation
    0
    """
    cells = [cell.strip() for cell in line.split(",")]
    cells += [""] * (len(QUERY) - len(cells))
    memory, capability, generation, width, lanes = (_number(cells[i]) for i in (1, 3, 4, 5, 6))
    return Gpu(cells[0], memory / 1024, cells[2], capability, int(generation), int(width), int(lanes))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _by_torch(index: int) -> Gpu:
    import torch

    about = torch.cuda.get_device_properties(index)
    return Gpu(about.name, about.total_memory / 2**30, capability=about.major + about.minor / 10)


def lock_limit() -> int | None:
    """Bytes that this process may lock; None where there is no limit, or no such thing."""
    try:
        import resource
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft
