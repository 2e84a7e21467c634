"""An editor knows what a task takes and gives: asked of the type checker, with the types of Django that people have."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from pgqueue.backend import PGQueueTask
from pgqueue.declaring import Options

ROOT = Path(__file__).resolve().parent.parent

DECLARED = """
from typing import Any, reveal_type
from pgqueue import task

@task
def double(number: int) -> int:
    return number * 2

@task(max_attempts=3, queue_name="mail")
def send(address: str, *, body: str = "") -> str:
    return address

@task(takes_context=True)
def count(context: Any, times: int) -> list[int]:
    return [times]

@task
async def later(number: int) -> bool:
    return number > 0

@task(takes_context=True)
async def later_with_context(context: Any) -> float:
    return 0.5
"""
KNOWN = {
    "double.enqueue(1).return_value": "int",
    "double.get_result('1').args": "list[Any]",
    "send.using(priority=1).enqueue('a', body='b').return_value": "str",
    "count.enqueue(3).return_value": "list[int]",
    "later.enqueue(3).return_value": "bool",
    "later.call(3)": "bool",
    "later_with_context.enqueue().return_value": "float",
}
REFUSED = {
    "double.enqueue('1')": "arg-type",
    "double.bind()": "call-arg",
    "send.enqueue('a', boddy='b')": "call-arg",
    "send.using(prioritie=1)": "call-arg",
    "count.enqueue(3, 3)": "call-arg",
    "task(max_attempt=1)": "call-overload",
}


def test_the_type_checker_knows_arguments_results_and_options(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("mypy_django_plugin")
    lines = [f"reveal_type({words})" for words in KNOWN] + list(REFUSED)
    source = tmp_path / "declared.py"
    source.write_text("\n".join([DECLARED, *lines]))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(source)],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": "postgresql:///unused"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert re.findall(r'Revealed type is "(.*)"', checked.stdout) == list(KNOWN.values()), checked.stdout
    assert re.findall(r"error: .*\[(.*)\]", checked.stdout) == list(REFUSED.values()), checked.stdout


def test_every_option_of_a_task_is_typed() -> None:
    fields = {field.name for field in dataclasses.fields(PGQueueTask)} - {"func", "run_after", "takes_context"}
    assert set(get_type_hints(Options)) == fields
