"""A sitting of the queue harness: contestants in turn, what happens beside them, all in one file.

    QUEUE_HARNESS=directory python benchmarks/sitting.py [--passes 3] [--jobs 10000] [--only ours,sketch]

`QUEUE_HARNESS` has the harness's `bench.py`; its own BENCH_* variables say where its server and its environments are.
Ours and the sketch are linked into its contestants. `benchmarks/beside.py` runs meanwhile: below the line with the
rates of a round stand the tables of the databases that the round had. Variants of ours are `warning` and `heard`. In
the latter a receiver counts what finishes: when that is anything but the jobs, this is said, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
LINKS = {"ours": "contestant.py", "sketch": "sketch.py"}
VARIANTS = {
    "ours": "(warning|heard)?",
    "sketch": "",
    "pgqueuer_": "(b100)?",
    "graphile": "",
    "proto": "",
    "djtasksdb": "",
}
HEARD = re.compile(r"(\d+) runs of the receiver, (\d+) jobs")
# One worker process, then two.
WORKERS = 3


def main() -> None:
    """Run the passes."""
    given = arguments()
    harness, env = settle_in()
    failures = 0
    with given.output.open("a") as file:
        file.truncate(0)
        say(file, f"Queue harness, {given.passes} passes in turn: --rounds 1 --jobs {given.jobs} --cap {given.cap}")
        with beside(file, env):
            for number in range(given.passes):
                say(file, f"== pass {number + 1} {moment()}")
                for name in given.only.split(","):
                    idle = ",idle" if name == "ours" and not number else ""
                    options = [
                        *("--only", name, "--variants", f"^{VARIANTS.get(name, '')}$", "--rounds", "1"),
                        *("--jobs", str(given.jobs), "--cap", str(given.cap), "--idle", str(given.idle)),
                        *("--tests", "single,bulk,drain,latency" + idle, "--tag", f"sitting{number + 1}"),
                    ]
                    failures += run(file, harness, env, options)
                    if name == "ours":
                        failures += check_heard(file, env, f"sitting{number + 1}.ours.heard.json")
        say(file, f"== end {moment()}")
    sys.exit(1 if failures else 0)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(VARIANTS), help="Contestants, in this order.")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=10_000, help="The fast contestants get five times as many.")
    parser.add_argument("--cap", type=float, default=5, help="Seconds of a drain, at most.")
    parser.add_argument("--idle", type=float, default=60, help="Seconds, in the first pass, of ours.")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "sitting.txt")
    return parser.parse_args()


def settle_in() -> tuple[Path, dict[str, str]]:
    """Return the harness's directory and the environment for it, ours and the sketch among its contestants."""
    harness = Path(os.environ.get("QUEUE_HARNESS") or "nowhere")
    if not (harness / "bench.py").exists():
        sys.exit("QUEUE_HARNESS must name the directory of the queue harness, with bench.py in it.")
    for name, target in LINKS.items():
        link = harness / "contestants" / f"{name}.py"
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(HERE / target)
        if link.resolve() != HERE / target:
            sys.exit(f"{link} is not {HERE / target}, which is to be measured: remove it, and it will be linked.")
    home = os.environ.get("BENCH_HOME", str(Path(tempfile.gettempdir()) / "pgqueue-bench"))
    defaults = {
        "BENCH_HOME": home,
        "BENCH_VENVS": f"{home}/venvs",
        "BENCH_RESULTS": f"{home}/results",
        "BENCH_PGHOST": home,
        "BENCH_PGPORT": "54501",
        "BENCH_PGUSER": "bench",
        "BENCH_DB": "bench_run",
        "PGQUEUE_HEARD": f"{home}/heard.txt",
    }
    return harness, {**defaults, **os.environ}


@contextmanager
def beside(file: IO[str], env: dict[str, str]) -> Iterator[None]:
    """Let the sampler run during the block, with the harness's server and its output in the same file."""
    server = {name: env[f"BENCH_{name}"] for name in ("PGHOST", "PGPORT", "PGUSER")}
    clean = {name: value for name, value in env.items() if name != "DATABASE_URL"}
    command = [sys.executable, str(HERE / "beside.py"), env["BENCH_DB"]]
    with subprocess.Popen(command, env={**clean, **server}, stdout=file, stderr=subprocess.STDOUT) as sampler:
        try:
            yield
        finally:
            sampler.terminate()


def run(file: IO[str], harness: Path, env: dict[str, str], options: list[str]) -> int:
    """Run the harness once; return how many contestants or variants failed."""
    python = Path(env["BENCH_VENVS"]) / "base" / "bin" / "python"
    command = [str(python), "bench.py", *options]
    failures = 0
    with subprocess.Popen(
        command, cwd=harness, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            failures += " FAILED " in line or " SKIPPED " in line
            if " took " not in line:
                say(file, line.rstrip())
    return failures + (process.returncode != 0)


def check_heard(file: IO[str], env: dict[str, str], result: str) -> int:
    """Hold what the receivers counted against the jobs of the round; return 1 when it differs."""
    path, written = Path(env["PGQUEUE_HEARD"]), Path(env["BENCH_RESULTS"]) / result
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    round_ = json.loads(written.read_text()) if written.exists() else {}
    written.unlink(missing_ok=True)  # What is found the next time is of the next time.
    verdict = judge(text, round_)
    say(file, f"   heard: {verdict}")
    return verdict.startswith("WRONG")


def judge(text: str, round_: dict[str, Any]) -> str:
    """Say whether the workers' receivers counted each job of the round, and how many."""
    counts = [(int(runs), int(jobs)) for runs, jobs in HEARD.findall(text)]
    runs, jobs = sum(runs for runs, _ in counts), sum(jobs for _, jobs in counts)
    drains = round_.get("drain1", []) + round_.get("drain2", [])
    said = f"{len(counts)} workers, {runs} runs of the receiver, {jobs} jobs they settled"
    if len(counts) != WORKERS or any(runs != jobs for runs, jobs in counts):
        return f"WRONG: {said}, {WORKERS} workers expected, and as many runs as jobs in each"
    if any(drain["capped"] for drain in drains):
        return f"{said}; not held against the harness, which ended a drain at its cap"
    counted = sum(drain["n"] for drain in drains)
    return f"{said}, {counted} by the harness" if counted == jobs else f"WRONG: {said}, {counted} by the harness"


def moment() -> str:
    """Return the time of day, and how busy the machine is."""
    return f"{time.strftime('%H:%M:%S')} load {' '.join(f'{load:.2f}' for load in os.getloadavg())}"


def say(file: IO[str], line: str) -> None:
    """Write one line, at once, to the file and to the terminal."""
    print(line, flush=True)
    print(line, file=file, flush=True)


if __name__ == "__main__":
    main()
