"""English and Simplified Chinese, each complete."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client, override_settings

import pgqueue
from tests.admin.console import confirm_url
from tests.admin.test_overview import look
from tests.admin.test_pages import JOBS, plain
from tests.factories import JobFactory, QueueFactory

PACKAGE = Path(pgqueue.__file__).parent
CATALOGUE = PACKAGE / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"


def messages(text: str) -> dict[str, str]:
    """Return the messages of a catalogue by their English; a plural is its first form."""
    found = {}
    for block in text.split("\n\n"):
        entry = re.search(r"^msgid (.*?)^(?:msgid_plural .*?)?msgstr(?:\[0\])? (.*?)(?=^msgstr|\Z)", block, re.S | re.M)
        if entry:
            english, other = ("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', part)) for part in entry.groups())
            found[english] = other
    found.pop("", None)
    return found


def test_nothing_is_fuzzy_or_left_untranslated() -> None:
    text = CATALOGUE.read_text(encoding="utf-8")
    assert "fuzzy" not in text
    assert [english for english, chinese in messages(text).items() if not chinese] == []


@pytest.mark.parametrize("mark", [r"%\(\w+\)[sd]", r"\{\w+\}", "%%"])
def test_no_placeholder_is_lost(mark: str) -> None:
    for english, chinese in messages(CATALOGUE.read_text(encoding="utf-8")).items():
        assert sorted(re.findall(mark, english)) == sorted(re.findall(mark, chinese)), english


@pytest.mark.skipif(shutil.which("xgettext") is None, reason="xgettext reads the sources")
def test_every_text_of_the_sources_is_in_the_catalogue(tmp_path: Path) -> None:
    copy = tmp_path / "pgqueue"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po").unlink()
    admin = ["-m", "django", "makemessages", "-l", "zh_Hans", "--no-wrap"]
    subprocess.run([sys.executable, *admin], cwd=copy, check=True)
    fresh = (copy / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8")
    assert set(messages(fresh)) - set(messages(CATALOGUE.read_text(encoding="utf-8"))) == set()


@pytest.mark.django_db
def test_the_pages_speak_chinese(operator: Client) -> None:
    QueueFactory(name="emails", paused=True)
    row = JobFactory(dead=True)
    with override_settings(LANGUAGE_CODE="zh-hans"):
        assert "需要人处理" in plain(look(operator))
        assert "队列“emails”于" in plain(operator.get(JOBS))
        assert "失败,已放弃" in plain(operator.get(JOBS))
        said = plain(operator.get(confirm_url(row, "requeue")))
    assert "作业立即到期,至少还有一次尝试。" in said
    assert "重新排队" in said
