"""The README's example runs as printed."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    exec(compile(code, str(README), "exec"), {})
    assert "optimal" in capsys.readouterr().out
    assert (tmp_path / "curves.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_the_commands_are_the_ones_that_ci_runs():
    command = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"
    assert command in README.read_text(encoding="utf-8")
    assert f"\n{command}\n" in (README.parent / ".ci" / "run").read_text(encoding="utf-8")
