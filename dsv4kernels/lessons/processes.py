"""Kernel processes of the lessons: this very interpreter's, alike for every caller, none left."""

import os
import signal
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from triton import knobs

from . import ROOT

_LONGEST = 107  # bytes in the path of a socket on Linux


class Kernels:
    """Starts kernels of this very interpreter, the same whoever calls, and ends what they leave.

    No folder is searched for kernelspecs, so `python3` is ipykernel under `sys.executable`
    whatever the notebook's metadata or a user's own kernelspecs say. They are spoken to through
    sockets in the scratch folder, not through a network.
    """

    def __init__(self, folder: Path, scratch: Path, jobs: int):
        path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self.env = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "IPYTHONDIR": str(scratch / "ipython"),
            "OMP_NUM_THREADS": os.environ.get(
                "OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs))
            ),
        }
        self.env.pop("MPLBACKEND", None)
        for name, cache in _caches().items():
            if not _usable(cache):
                self.env[name] = str(scratch / name)
        self.folder, self.scratch = folder, scratch
        self.stopping = threading.Event()
        self.groups: set[int | None] = set()
        self.deaths: dict[str, str] = {}

    def manager_class(self, name: str) -> type:
        """The kernel manager that papermill is to use for a lesson."""
        from jupyter_client import AsyncKernelManager
        from jupyter_client.kernelspec import KernelSpecManager

        kernels = self

        class Manager(AsyncKernelManager):
            def __init__(self, **options):
                options["kernel_spec_manager"] = KernelSpecManager(kernel_dirs=[])
                options["connection_file"] = str(kernels.scratch / f"{name}.json")
                if len(os.fsencode(kernels.scratch / f"{name}-ipc-5")) <= _LONGEST:
                    options["transport"] = "ipc"
                super().__init__(**options)

            async def start_kernel(self, **options):
                with open(kernels.scratch / f"{name}.log", "wb") as log:
                    options |= {"stdout": log, "stderr": log, "env": kernels.env}
                    await super().start_kernel(cwd=str(kernels.folder), **options)
                kernels.groups.add(self.provisioner.pgid)
                if kernels.stopping.is_set():
                    kernels.stop()

            async def shutdown_kernel(self, now=False, restart=False):
                # Without jupyter_client's interrupt beforehand, after which an idle kernel now and
                # then misses the request and costs seconds; a hanging one is terminated anyway.
                await self.request_shutdown(restart=restart)
                await self.finish_shutdown(restart=restart)
                await self.cleanup_resources(restart=restart)

            async def cleanup_resources(self, restart=False):
                process = self.provisioner.process
                if process is not None and process.poll() is not None:
                    kernels.deaths[name] = _death(process.returncode)
                await super().cleanup_resources(restart=restart)
                # What a cell started and a dead kernel left behind has the kernel's process group.
                kernels.end(self.provisioner.pgid)

        return Manager

    def last_words(self, name: str) -> list[str]:
        """The last line, if any, that a kernel said beside its notebook: why it did not start."""
        log = self.scratch / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return [line.strip() for line in lines if line.strip()][-1:]

    def end(self, group: int | None) -> None:
        """Kill a kernel and whatever its cells started."""
        self.groups.discard(group)
        with suppress(ProcessLookupError):
            if group and group != os.getpgrp():
                os.killpg(group, signal.SIGKILL)

    def stop(self) -> None:
        """Kill all kernels, and those still to start."""
        self.stopping.set()
        for group in list(self.groups):
            self.end(group)


def _caches() -> dict[str, Path]:
    """By its environment variable, where Triton and matplotlib each keep what they computed."""
    home = Path(os.path.expanduser("~"))
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "matplotlib")
    return {
        "TRITON_CACHE_DIR": Path(knobs.cache.dir),
        "MPLCONFIGDIR": Path(os.environ.get("MPLCONFIGDIR") or settings),
    }


def _usable(folder: Path) -> bool:
    """Whether files can be written to a folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
    except OSError:
        return False
    return True


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "SIGKILL: did memory run out?"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
