"""The pages against the code: what is generated, what is claimed, what is linked, what is named."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import re
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from django.db import connection

import pgqueue
from pgqueue.backend import PGQueueTask
from pgqueue.conf import Settings
from pgqueue.context import JobContext
from pgqueue.models import Job
from pgqueue.states import Outcome, State
from pgqueue.verbs import VERBS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
UNITS = {"": 1, " KiB": 1024}


def _load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "reference" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = _load_generator()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """Leave out fences, indented blocks and code spans: what looks like a link there is none."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.S | re.M)
    text = re.sub(r"^(?: {4}|\t).*$", "", text, flags=re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def slugs_of(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges and the builder make them."""
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def first_cells(text: str) -> set[str]:
    """Return the code spans in the first column of all tables of a text."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {span for cell in cells for span in re.findall(r"`([^`]+)`", cell)}


def section(text: str, heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, flags=re.S | re.M)
    assert found, heading
    return found[1]


@pytest.mark.parametrize("name", generator.PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    page = DOCS / "reference" / name
    assert page.read_text(encoding="utf-8") == generator.PAGES[name](), "stale: run make docs"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_python_blocks_compile(path: Path) -> None:
    blocks = re.findall(r"^( *)```python\n(.*?)^\1```", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for number, (_, block) in enumerate(blocks, start=1):
        source = textwrap.dedent(block)
        compile(source, f"{name_of(path)}, block {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.django_db
@pytest.mark.parametrize("path", [path for path in PAGES if "```sql" in path.read_text()], ids=name_of)
def test_statements_run(path: Path) -> None:
    blocks = re.findall(r"^( *)```sql\n(.*?)^\1```", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for _, block in blocks:
        with connection.cursor() as cursor:
            cursor.execute(block)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(path: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (anchor and anchor not in slugs_of(found)):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_pages_named_in_code_spans_exist(path: Path) -> None:
    named = re.findall(r"`(docs/[\w./-]+)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"^([\w/*-]+)$", text_of("index.md"), flags=re.M))
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    missing = {page for page in pages - listed if f"{page.rpartition('/')[0]}/*" not in listed}
    assert missing == {"index"}


def test_every_public_name_is_in_the_reference() -> None:
    assert set(pgqueue.__all__) == first_cells(section(text_of("reference/tasks.md"), "The public names"))


def test_every_option_of_a_task_is_in_the_reference() -> None:
    options = {field.name for field in dataclasses.fields(PGQueueTask)} - {"func"}
    assert first_cells(section(text_of("reference/tasks.md"), "Options of a task")) == options


def test_everything_in_the_context_is_in_the_reference() -> None:
    attributes = {f"context.{name}" for name, value in vars(JobContext).items() if isinstance(value, property)}
    named = first_cells(section(text_of("reference/tasks.md"), "The context"))
    assert named == attributes | {"context.task_result"}


def test_every_verb_and_outcome_is_in_the_reference() -> None:
    page = text_of("reference/verbs.md")
    assert first_cells(section(page, "Verbs")) == set(VERBS)
    assert first_cells(section(page, "Outcomes")) == set(Outcome)


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_the_reference_says_where_a_verb_applies_and_who_may(verb) -> None:
    (row,) = re.findall(rf"^\| `{verb.name}` \|(.*)\|$", text_of("reference/verbs.md"), flags=re.M)
    target, states, _, permission = [cell.strip() for cell in row.split(" | ")]
    assert target == f"a {verb.kind}"
    assert states.split(", ") == list(verb.states)
    assert permission == f"`{verb.permission}`"


def test_every_column_of_a_job_is_in_the_reference() -> None:
    columns = {field.column for field in Job._meta.concrete_fields}
    assert first_cells(section(text_of("reference/sql.md"), "pgqueue_job")) == columns


def test_every_state_is_explained() -> None:
    assert first_cells(text_of("states.md")) == set(State)


def test_every_log_line_is_explained() -> None:
    calls = re.compile(r"""logger\.\w+\(\s*(?:level,\s*)?"(\w+(?:\.\w+)?)[ "]""")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "pgqueue").rglob("*.py")]
    events = {event for source in sources for event in calls.findall(source)}
    assert len(events) > 10
    assert first_cells(section(text_of("operating.md"), "Log lines")) == events


def test_the_readme_tells_the_defaults() -> None:
    defaults = {field.name.upper(): field.default for field in dataclasses.fields(Settings)}
    rows = re.findall(
        r"^\| (`[A-Z].*?) \| (.*?) \|", section(README.read_text(encoding="utf-8"), "Defaults"), flags=re.M
    )
    told = {}
    for names, values in rows:
        keys = re.findall(r"`(\w+)`", names)
        told |= dict(zip(keys, values.split(", ") if len(keys) > 1 else [values], strict=True))
    assert len(told) > 10
    assert {key: _value(words) for key, words in told.items()} == {key: defaults[key] for key in told}


def _value(words: str) -> object:
    if words == "the routers' choice":
        return None
    if words.startswith("`"):
        return ast.literal_eval(words.strip("`"))
    number, unit = re.fullmatch(r"([\d.]+)( KiB)?", words).groups(default="")
    return float(number) * UNITS[unit]
