"""The command line: `python -m dsv4kernels run`, `site`, `check`, `bench`, `counters`."""

import argparse
import signal
import sys
import time
from pathlib import Path

from .parameters import LessonError


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its exit status: 0 well, 1 a lesson failed, 2 misuse, 130 Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m dsv4kernels", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_run(commands)
    _add_site(commands)
    _add_check(commands)
    _add_bench(commands)
    _add_counters(commands)
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        status = options.command(options)
        sys.stdout.flush()
        return status
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except LessonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _add_run(commands) -> None:
    parser = commands.add_parser("run", help="run the lessons and write their pages")
    parser.add_argument("--only", nargs="+", metavar="LESSON", help="names, or their beginnings")
    parser.add_argument("--profile", default="full", help="parameters: full (default) or quick")
    parser.add_argument(
        "-p",
        dest="overrides",
        action="append",
        default=[],
        type=_assignment,
        metavar="NAME=VALUE",
        help="a parameter for every lesson that has it; may be repeated",
    )
    parser.add_argument("--build", type=Path, help="folder for pages (default: build)")
    parser.add_argument("--jobs", type=_positive, help="lessons at a time (default: CPUs)")
    parser.add_argument(
        "--cell-timeout", type=_positive, default=600, metavar="S", help="seconds a cell may take"
    )
    parser.add_argument("--notebooks", type=Path, help="folder of lessons (default: notebooks)")
    parser.add_argument("--list", action="store_true", help="show lessons and their parameters")
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from . import lessons
    from .lessons import runner

    notebooks = options.notebooks or lessons.NOTEBOOKS
    if options.list:
        found = lessons.read_all(notebooks)
        for name in lessons.select(found, options.only):
            source = found[name].parameters.strip().replace("\n", "\n    ")
            print(f"{name}: {found[name].title}\n    {source}")
        return 0
    ledger = runner.run(
        options.only,
        profile=options.profile,
        overrides=dict(options.overrides),
        build=options.build or runner.BUILD,
        notebooks=notebooks,
        jobs=options.jobs,
        cell_timeout=options.cell_timeout,
    )
    statuses = [lesson["status"] for lesson in ledger["lessons"].values()]
    counts = ", ".join(f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses))
    print(f"{counts} in {ledger['seconds']:.1f} s: {options.build or runner.BUILD}/index.html")
    return 1 if "failed" in statuses else 0


def _add_site(commands) -> None:
    parser = commands.add_parser("site", help="build the site from docs/ and a run's lessons")
    parser.add_argument("--build", type=Path, help="folder of the run (default: build)")
    parser.set_defaults(command=_site)


def _site(options: argparse.Namespace) -> int:
    from .lessons import runner, site

    print(site.build(options.build or runner.BUILD))
    return 0


def _add_check(commands) -> None:
    parser = commands.add_parser("check", help="check a kernel of your own, then measure it")
    parser.add_argument("candidate", metavar="MODULE:FUNCTION", help="or FILE.py:FUNCTION")
    parser.add_argument("--kernel", required=True, help="slot_mapping, combine or dcp")
    parser.add_argument(
        "--safe", action="store_true", help="also try indices outside the definition"
    )
    parser.add_argument(
        "--most", type=_positive, default=8, metavar="N", help="faults to tell (default: 8)"
    )
    parser.add_argument(
        "--seconds", type=_positive, metavar="S", help="that a trial may take (default: a minute)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU, if there is")
    parser.add_argument("--list", action="store_true", help="show the trials, and run none")
    parser.set_defaults(command=_check)


def _check(options: argparse.Namespace) -> int:
    from . import runtime, variants
    from .parameters import closest
    from .variants import candidates, trials

    if options.kernel not in variants.REFERENCE:
        raise LessonError(
            f"no kernel {options.kernel!r}{closest(options.kernel, variants.REFERENCE)}"
        )
    if options.list:
        for trial in trials.of(options.kernel):
            print(f"{trial.group:7} {trial.name}")
        return 0
    device = options.device or runtime.default_device().type
    if device == "cuda" and not runtime.has_gpu():
        raise LessonError("no GPU here: --device cpu runs in Triton's interpreter")
    where = "on the GPU" if device == "cuda" else "in Triton's interpreter"
    print(f"{options.candidate} as {options.kernel}, {where}")
    verdicts, told = [], 0
    for verdict in candidates.check(
        options.candidate,
        options.kernel,
        device=device,
        safe=options.safe,
        seconds=options.seconds or candidates.SECONDS,
    ):
        verdicts.append(verdict)
        if verdict.fault and verdict.fault != candidates.NOT_TRIED and told < options.most:
            told += 1
            print(f"{verdict.group}, {verdict.name}:\n    {verdict.fault}", flush=True)
    wrong = [verdict for verdict in verdicts if verdict.fault]
    untried = sum(verdict.fault == candidates.NOT_TRIED for verdict in wrong)
    if len(wrong) - untried > told:
        print(f"and {len(wrong) - untried - told} more (--most shows more)")
    why = candidates.NOT_TRIED if untried else "not tried"
    print(f"{len(verdicts) - len(wrong)} of {len(verdicts)} trials right, {untried} {why}")
    if wrong or not runtime.has_gpu():
        print("not measured: " + ("it is wrong" if wrong else "no GPU here"))
        return 1 if wrong else 0
    print(candidates.in_words(candidates.compare(options.candidate, options.kernel)))
    return 0


def _add_bench(commands) -> None:
    parser = commands.add_parser("bench", help="measure this machine's GPU and record the figures")
    parser.add_argument("--suite", nargs="+", metavar="SUITE", help="which (default: all)")
    parser.add_argument("--out", type=Path, help="folder (default: the GPU's own in data/measured)")
    parser.add_argument("--list", action="store_true", help="show the suites")
    parser.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> int:
    from .measure import bench, timing
    from .parameters import closest

    if options.list:
        for suite, cases in bench.SUITES.items():
            print(f"{suite}: {len(list(cases()))} shapes")
        return 0
    suites = options.suite or list(bench.SUITES)
    for suite in suites:
        if suite not in bench.SUITES:
            raise LessonError(f"no suite {suite!r}{closest(suite, bench.SUITES)}")
    try:
        folder = bench.run(suites, options.out)
    except timing.SkippedError as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("what was measured so far is kept", file=sys.stderr)
        raise
    print(f"recorded in {folder}")
    return 0


def _add_counters(commands) -> None:
    parser = commands.add_parser("counters", help="read this GPU's hardware counters, with ncu")
    parser.add_argument("--out", type=Path, help="folder (default: the GPU's in data/counters)")
    parser.set_defaults(command=_counters)


def _counters(options: argparse.Namespace) -> int:
    from .measure import counters

    try:
        print(f"recorded in {counters.run(options.out)}")
    except counters.NoCountersError as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    return 0


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    return name.strip(), value


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _end_on_signals() -> None:
    """End on SIGTERM, or when the terminal closes, as on Ctrl-C; leave the ending undisturbed."""
    asked = float("-inf")

    def interrupt(number, frame):
        nonlocal asked
        if time.monotonic() - asked > 10:
            asked = time.monotonic()
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, interrupt)


if __name__ == "__main__":
    _end_on_signals()
    sys.exit(main())
