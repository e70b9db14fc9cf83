"""The pages say what is so: every command line in them parses, and every file in them is one that its reader takes."""

import configparser
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

import roivault
from ray_jobs.metrics import JobCollector
from ray_jobs.tally import Tally

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
OPERATIONS = ROOT / "docs" / "operations.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, language=None):
    """Fenced blocks of a page, those of one language or all: (language, text)."""
    found = FENCE.findall(page.read_text("utf-8"))
    return [(name, text) for name, text in found if language in (None, name)]


def lines(page):
    """Command lines in the blocks of a page, from the word `roivault` on."""
    for language, text in blocks(page):
        if language == "yaml":
            told = [part.get("spec", {}).get("entrypoint", "") for part in yaml.safe_load_all(text)]
        else:
            told = text.replace("\\\n", " ").splitlines()
        for line in told:
            if language != "python" and (found := re.search(r"(?:^|[\s=/])roivault (?=[a-z])(.*)", line)):
                yield shlex.split(found[1], comments=True)


def mentions(page):
    """Command lines within sentences and tables: their words may stand for others."""
    text = FENCE.sub("", page.read_text("utf-8"))
    return [line.replace("\n", " ").split() for line in re.findall(r"`roivault ([a-z][^`]*)`", text)]


def find(words):
    """The command that words begin with, its name, and the words after it."""
    commands, names = roivault.build_app().commands, []
    while True:
        names.append(words[0])
        assert words[0] in commands, f"roivault {' '.join(names)} is no command"
        command, words = commands[words[0]], words[1:]
        commands = getattr(command, "commands", None)
        if not commands or not words or "|" in words[0]:
            return command, " ".join(names), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_parse(page):
    for words in lines(page):
        command, name, rest = find(words)
        command.make_context(name, rest)  # raises what a user would be told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_mentioned_exist_with_their_options(page):
    for words in mentions(page):
        command, name, rest = find(words)
        known = {option for parameter in command.params for option in parameter.opts}
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert used <= known | {"--help"}, f"roivault {name} has no {used - known}"


def test_pages_hold_command_lines():
    assert len(list(lines(ROOT / "README.md"))) >= 3 and len(list(lines(OPERATIONS))) >= 5
    assert len(mentions(OPERATIONS)) >= 5


def test_options_in_the_table_of_knobs_exist():
    text = OPERATIONS.read_text("utf-8")
    named = set(re.findall(r"^\| `(--[a-z-]+)` \|", text, re.MULTILINE))
    known = {option for parameter in find(["extract"])[0].params for option in parameter.opts}
    assert named and named <= known
    defaults = {option: parameter.default for parameter in find(["extract"])[0].params for option in parameter.opts}
    told = re.findall(r"^\| `(--(?:models-per-gpu|timeout|shard-size|precision|max-failures))` \| ([\w%]+)", text, re.M)
    assert {option: str(defaults[option]) for option, _ in told} == dict(told)


def test_batch_script_is_valid():
    ((_, script),) = blocks(OPERATIONS, "bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "--exclusive" in script and script.startswith("#!/bin/bash\n#SBATCH")


def services():
    """The units of the page, in order."""
    for _, unit in blocks(OPERATIONS, "ini"):
        parser = configparser.RawConfigParser(strict=False)  # some options come twice
        parser.optionxform = str
        parser.read_string(unit)
        yield parser


def test_services_are_valid_and_do_not_restart_in_vain():
    units = list(services())
    assert len(units) == 2
    for unit in units:
        assert set(unit.sections()) == {"Unit", "Service", "Install"}
        assert unit["Service"]["RestartPreventExitStatus"].split() == ["2", "65", "66", "78"]
    seconds = find(["serve"])[0].make_context("serve", ["photos.roi"]).params["drain_seconds"]
    assert float(units[1]["Service"]["TimeoutStopSec"]) > seconds
    assert units[1]["Service"]["SuccessExitStatus"] == "130"


def test_deployment_of_the_server_is_complete():
    documents = [part for _, text in blocks(OPERATIONS, "yaml") for part in yaml.safe_load_all(text)]
    deployment, service = (next(p for p in documents if p.get("kind") == kind) for kind in ("Deployment", "Service"))
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    pod = template["spec"]
    (container,) = pod["containers"]
    program, verb, *words = container["command"] + container["args"]
    options = find([verb])[0].make_context(verb, words).params
    assert program == "roivault" and pod["terminationGracePeriodSeconds"] > options["drain_seconds"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert options["bind"] == f"0.0.0.0:{ports['flight']}" and options["metrics_port"] == f"0.0.0.0:{ports['metrics']}"
    assert service["spec"]["ports"] == [{"name": "flight", "port": ports["flight"]}]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"] if mount["readOnly"]}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    for name in ("tls_cert", "tls_key", "token_file"):
        assert str(options[name].parent) in mounted.values()
    assert all(volume["secret"]["defaultMode"] & 0o007 == 0 for volume in pod["volumes"] if "secret" in volume)


def test_manifest_is_complete():
    documents = [part for _, text in blocks(OPERATIONS, "yaml") for part in yaml.safe_load_all(text)]
    job, claim = (
        next(part for part in documents if part.get("kind") == kind) for kind in ("RayJob", "PersistentVolumeClaim")
    )
    assert job["apiVersion"] == "ray.io/v1" and job["spec"]["backoffLimit"] >= 1
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["resources"]["requests"] == container["resources"]["limits"]
    claims = [
        v["persistentVolumeClaim"]["claimName"]
        for v in cluster["headGroupSpec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in v
    ]
    assert claim["metadata"]["name"] in claims
    output = shlex.split(job["spec"]["entrypoint"])
    mounts = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert any(
        output[output.index("-o") + 1].startswith(m["mountPath"] + "/") and not m.get("readOnly") for m in mounts
    )


def test_alerts_watch_metrics_that_exist():
    (rules,) = [
        part["groups"]
        for _, text in blocks(OPERATIONS, "yaml")
        for part in yaml.safe_load_all(text)
        if "groups" in part
    ]
    served = set()
    for family in JobCollector(Tally(), {}).collect():
        served |= {family.name, f"{family.name}_total" if family.type == "counter" else family.name}
    watched = set(re.findall(r"\broivault_\w+", " ".join(rule["expr"] for rule in rules[0]["rules"])))
    assert watched and watched <= served


def test_sizes_add_up():
    rows = re.findall(
        r"^\| (\d+) \| \w+ \| ([\d,]+) \| (\d+) GB \| ([\d.]+) TB, ([\d,]+) shards \|$",
        OPERATIONS.read_text("utf-8"),
        re.M,
    )
    assert len(rows) == 4
    for _, size, million, all_of_them, shards in rows:
        size, shards = int(size.replace(",", "")), int(shards.replace(",", ""))
        assert round(size / 1000) == int(million) and round(size / 1e4, 1) == float(all_of_them)
        assert shards == -(-size * 10**8 // 2**33)
