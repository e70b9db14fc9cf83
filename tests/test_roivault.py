"""The front door: exit codes, error messages, exported names, and a start that loads nothing heavy."""

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.main import get_group

import cache
import roivault
from cache import DiskError, StoreMismatch, UsageError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def fails(monkeypatch):
    """Make the verb `try` raise the given error; returns the way to run it."""

    def run(error, *options):
        def register(app):
            @app.command("try")
            def attempt(as_json: bool = typer.Option(False, "--json"), log_file: str = "") -> None:
                raise error

        monkeypatch.setattr(roivault, "VERBS", {"try": ("verbs_of_a_test", "")})
        monkeypatch.setitem(sys.modules, "verbs_of_a_test", SimpleNamespace(register=register))
        return roivault.main(["try", *options])

    return run


def run(*args, **options):
    command = [sys.executable, "-m", "roivault", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, **options)


def test_help_and_version():
    shown = run("--help")
    assert shown.returncode == 0 and "models" in shown.stdout
    assert run().stdout == shown.stdout
    assert run("--version").stdout == f"roivault {roivault.__version__}\n"


def verbs(commands=None, above=""):
    """Every verb with its command, those of groups included."""
    for name, command in (commands or roivault.build_app().commands).items():
        if hasattr(command, "commands"):
            yield from verbs(command.commands, f"{above}{name} ")
        else:
            yield above + name, command


def test_every_verb_of_the_packages_is_mounted():
    for module in {module for module, _ in roivault.VERBS.values()}:
        app = typer.Typer()
        importlib.import_module(module).register(app)
        assert {name for name, (home, _) in roivault.VERBS.items() if home == module} == set(get_group(app).commands)


def test_help_loads_no_command():
    code = "import sys, roivault; roivault.main(['--help']); "
    code += "print([name for name in sys.modules if name.endswith('.commands') or name == 'numpy'])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_mistyped_verb_is_answered_with_a_near_one(capsys):
    assert roivault.main(["extrct"]) == 2
    assert "extract" in capsys.readouterr().err


def test_every_verb_has_help():
    for name, command in verbs():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help or parameter.name == "help", f"{name} {parameter.name}"


def test_every_verb_takes_json():
    for name, command in verbs():
        assert "--json" in [option for parameter in command.params for option in parameter.opts], name


@pytest.mark.parametrize("error, code", [(UsageError("a"), 2), (StoreMismatch("b"), 78), (DiskError("c"), 74)])
def test_deliberate_errors_end_with_their_code_and_message(fails, capsys, error, code):
    assert fails(error) == code
    assert capsys.readouterr() == ("", f"Error: {error}\n")


def test_errors_are_json_when_asked(fails, capsys):
    assert fails(StoreMismatch("other weights"), "--json") == 78
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "other weights", "exit_code": 78}
    assert err == "Error: other weights\n"


def test_interrupt_ends_with_130(fails, capsys):
    assert fails(KeyboardInterrupt()) == 130
    assert "interrupted" in capsys.readouterr().err


def test_interrupt_that_a_library_reports_as_its_own_error_ends_with_130(fails, capsys):
    error = ImportError("numpy._core.umath failed to import")
    error.__cause__ = KeyboardInterrupt()
    assert fails(error) == 130
    assert "interrupted" in capsys.readouterr().err


def test_errors_draw_nothing_on_the_terminal(fails, capsys):
    assert fails(UsageError("no \x1b[31mfile\nsee --help")) == 2
    assert capsys.readouterr().err == "Error: no \\x1b[31mfile\nsee --help\n"


def test_bug_ends_with_1_and_names_the_log(fails, capsys):
    assert fails(ZeroDivisionError("what now")) == 1
    message = capsys.readouterr().err
    log = Path(message.strip().rpartition(" ")[2])
    text = log.read_text("utf-8")
    log.unlink()
    assert "what now" in message and "Traceback" not in message
    assert "Traceback" in text and "ZeroDivisionError: what now" in text and "roivault try" in text


@pytest.mark.parametrize("joined", [False, True])
def test_bug_goes_to_the_log_file_of_the_command_line(fails, capsys, tmp_path, joined):
    log = tmp_path / "my run.log"
    options = [f"--log-file={log}"] if joined else ["--log-file", str(log)]
    assert fails(ZeroDivisionError("what now"), *options) == 1
    assert str(log) in capsys.readouterr().err
    assert "ZeroDivisionError" in log.read_text("utf-8")


def test_full_disk_ends_with_74_and_names_the_file(fails, capsys):
    assert fails(OSError(28, "No space left on device", "/data/x.roi")) == 74
    assert capsys.readouterr().err == "Error: No space left on device: /data/x.roi\n"


def test_missing_extra_is_named(fails, capsys):
    assert fails(ModuleNotFoundError("No module named 'torch'", name="torch")) == 2
    assert "pip install 'torch', or roivault with its extra [extract]" in capsys.readouterr().err
    assert fails(ModuleNotFoundError("No module named 'nobody'", name="nobody")) == 1


@pytest.mark.parametrize("args", [["nosuch"], ["--nosuch"], ["models", "--nosuch"], ["view"]])
def test_wrong_usage_ends_with_2_and_says_where_help_is(args, capsys):
    assert roivault.main(args) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("Error: ") and "--help" in err


def test_closed_pipe_is_quiet():
    script = (
        "import roivault, sys, types\n"
        "def register(app):\n"
        "    @app.command('try')\n"
        "    def attempt():\n"
        "        for i in range(100000): print(i)\n"
        "sys.modules['verbs'] = types.SimpleNamespace(register=register)\n"
        "roivault.VERBS = {'try': ('verbs', '')}\n"
        "sys.exit(roivault.main(['try']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


@pytest.mark.parametrize("name", roivault.__all__)
def test_exported_names_are_there(name):
    assert getattr(roivault, name) is not None
    assert name in dir(roivault)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        roivault.nosuch  # noqa: B018


def run_in(folder, code):
    """Run code in a folder whose files come first on Python's path, roivault's own after them."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )


MODELS = "import sys, roivault; sys.exit(roivault.main(['models']))"


@pytest.mark.parametrize("decoy", ["cache.py", "extractor/__init__.py"])
def test_shadowing_package_is_named(tmp_path, decoy):
    path = tmp_path / decoy
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('the decoy was imported')")
    result = run_in(tmp_path, MODELS)
    assert result.returncode == 2
    assert str(tmp_path) in result.stderr and str(ROOT) in result.stderr
    result = run_in(tmp_path, "import roivault; roivault.Regions")
    assert "ShadowedPackages" in result.stderr and str(tmp_path) in result.stderr


def test_package_that_was_imported_before_is_named(tmp_path):
    (tmp_path / "cache.py").write_text("mine = 1")
    code = f"import sys, cache; sys.path.remove(''); {MODELS}"
    result = run_in(tmp_path, code)
    assert result.returncode == 2 and str(tmp_path) in result.stderr


def test_folder_of_the_same_name_without_a_package_is_harmless(tmp_path):
    (tmp_path / "cache").mkdir()
    result = run_in(tmp_path, MODELS)
    assert (result.returncode, result.stderr) == (0, "")


def table(heading):
    """First cells of the README's table with that heading."""
    lines = (ROOT / "README.md").read_text("utf-8").split(f"| {heading} |", 1)[1].splitlines()[2:]
    return [line.split("|")[1].strip().strip("`") for line in itertools.takewhile(lambda line: line[:1] == "|", lines)]


def test_readme_lists_every_verb_and_no_other():
    listed = {verb for cell in table("command") for verb in cell.split()[1].split(",")}
    assert listed == set(roivault.build_app().commands)


def test_readme_explains_every_exit_code():
    codes = {error.exit_code for error in vars(cache.errors).values() if hasattr(error, "exit_code")}
    assert codes | {0, 1, 2, 74, 130} <= set(map(int, table("exit code")))


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "NOTICE", "docs/footguns.md", "docs/operations.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8")):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def leaves(command, name):
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
    for verb in inner or ():
        yield from leaves(inner[verb], f"{name} {verb}".strip())


def test_every_command_takes_the_common_options():
    for name, command in leaves(roivault.build_app(), ""):
        options = {option for parameter in command.params for option in parameter.opts}
        assert options >= {"--json", "--quiet", "--log-file"}, name


def test_quiet_silences_but_for_json_and_the_log_goes_to_the_file(capsys, tmp_path):
    assert roivault.main(["models", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert roivault.main(["models", "--quiet", "--json", "--log-file", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out.startswith("[") and (tmp_path / "log").exists()
    assert roivault.main(["models", "--log-file", str(tmp_path / "no" / "log")]) == 74
