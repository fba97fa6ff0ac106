"""Answers that are kept: the same question of something else is another question."""

import json

import pytest

from sdjax.drafters.no_draft import NoDraft
from sdjax.study import record
from sdjax.study.plan import Case
from sdjax.study.record import asked

CASE = Case("v5e:2x4", NoDraft())


def having(libtpu, monkeypatch):
    monkeypatch.setattr(record, "find_spec", lambda name: object() if libtpu else None)


def test_an_answer_is_kept_and_replaced(tmp_path, monkeypatch):
    path = tmp_path / "answers.json"
    for answer in ([1], [2]):
        having(True, monkeypatch)
        assert asked(path, "plain", CASE, lambda answer=answer: answer) == answer
        having(False, monkeypatch)
        assert asked(path, "plain", CASE, pytest.fail) == answer
    assert list(json.loads(path.read_text())) == ["plain"]


def test_another_case_of_the_same_name_was_not_asked(tmp_path, monkeypatch):
    path = tmp_path / "answers.json"
    having(True, monkeypatch)
    asked(path, "plain", CASE, lambda: 1)
    having(False, monkeypatch)
    for question, about in [("plain", Case("v5e:2x4", NoDraft(), batch=512)), ("other", CASE)]:
        with pytest.raises(ValueError, match="pip install libtpu"):
            asked(path, question, about, pytest.fail)


def test_where_the_notebook_is_not_beside_the_package_nothing_is_kept(tmp_path, monkeypatch):
    having(True, monkeypatch)
    assert asked(tmp_path / "site-packages" / "answers.json", "plain", CASE, lambda: 1) == 1
    having(False, monkeypatch)
    with pytest.raises(ValueError, match="nothing"):
        asked(tmp_path / "site-packages" / "answers.json", "plain", CASE, pytest.fail)
