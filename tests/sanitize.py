"""Run every kernel under NVIDIA's compute-sanitizer, and record what it finds.

    python tests/sanitize.py [--out FOLDER]

The four tools watch every trial of every variant at small sizes, with PyTorch's caching of memory
switched off so that a tensor's end is the end of an allocation: memcheck (addresses outside),
initcheck (reading what nobody wrote), racecheck (order between threads of a program) and synccheck
(barriers). A kernel that is known to be wrong runs under memcheck too: a tool that finds nothing
there finds nothing anywhere. Needs a GPU and compute-sanitizer; some minutes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dsv4kernels import variants  # noqa: E402
from dsv4kernels.measure import bench, records  # noqa: E402
from dsv4kernels.variants import candidates, trials  # noqa: E402

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
WRONG = f"{Path(__file__).with_name('wrong_candidates.py')}:slot_mapping_stale"
COLUMNS = ("tool", "what", "launches", "errors", *bench.ORIGIN)


def child(what: str) -> None:
    """Run all trials, or the known wrong kernel; print how many were launched."""
    launched = 0
    if what == "wrong":
        variants.register("slot_mapping", WRONG)
        call = variants.caller("slot_mapping", WRONG)
        (trial,) = [
            t for t in trials.of("slot_mapping") if "far past" in t.name and "padding" in t.name
        ]
        arguments = [v.cuda() if hasattr(v, "cuda") else v for v in trial.arguments()]
        call(*arguments)
        print("launched:1", flush=True)
        return
    for kernel, names in variants.BUILT_IN.items():
        for name in names:
            function = variants.caller(kernel, name)
            for trial in trials.of(kernel):
                if trial.group == "safety" and name != "own":
                    continue
                fault = candidates.fault_of(function, kernel, trial.arguments(), "cuda")
                if fault:
                    raise SystemExit(f"{kernel} {name}, {trial.name}: {fault}")
                launched += 2
    print(f"launched:{launched}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder (default: the GPU's in data/sanitizer)")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return 0
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        print("compute-sanitizer is not installed", file=sys.stderr)
        return 2
    origin = bench.provenance()
    folder = options.out or records.device_folder(origin["device"], "sanitizer")
    here = [sys.executable, __file__, "--child"]
    subprocess.run([*here, "all"], check=True)  # compiles everything, which a tool need not watch
    runs = [(tool, "all") for tool in TOOLS] + [("memcheck", "wrong")]
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    started = [
        subprocess.Popen(
            [sanitizer, "--tool", tool, *here, what],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        for tool, what in runs
    ]
    failed = False
    for (tool, what), process in zip(runs, started, strict=True):
        said, _ = process.communicate()
        found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)
        launched = re.search(r"launched:(\d+)", said)
        errors = int(found[1]) if found else -1
        wrong = errors == 0 if what == "wrong" else errors != 0 or not launched
        failed |= wrong
        print(f"{tool}, {what}: {errors} errors{' <- NOT AS IT SHOULD BE' if wrong else ''}")
        if wrong:
            print(said[-3000:])
        row = {
            "tool": tool,
            "what": "a kernel known to be wrong"
            if what == "wrong"
            else "every variant, all trials",
            "launches": launched[1] if launched else "",
            "errors": errors,
        }
        records.append([row | origin], folder / "sanitizer.csv", COLUMNS)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
