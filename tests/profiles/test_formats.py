"""``scripts/make_formats.py``: keys read from source that is like that of accelerate and DeepSpeed."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from parastrat.profiles.files import profiles_root, read_format

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """
from enum import Enum
class Zero(Base):
    stage: Stage = 0
    bucket: int = Field(pp_int(5e8), ge=0, alias="stage3_bucket")
    steps: int = Field(1, ge=1)
    loss: float = 0
    path: Optional[Path] = None
    inner: Optional[OffloadConfig] = None
    names: list[str] = None
    on: bool | None = None
class Loader:
    class Config:
        depth: int = 2
class Trainer:
    class Config:
        kind: Literal["a", "b"] = "a"
        loader: Loader.Config | None = None
class Device(str, Enum):
    NONE = "none"
    CPU = "cpu"
POLICIES = ["A", "B"]
SIZE = "size"
SIZE_DEFAULT = None
DROP = "drop"
DROP_DEFAULT = False
BF16 = "bf16"
TABLE = {SIZE: SIZE_DEFAULT, DROP: DROP_DEFAULT}
def size(param_dict):
    return get_scalar_param(param_dict, SIZE, SIZE_DEFAULT)
def drop(param_dict):
    return get_scalar_param(param_dict, DROP, DROP_DEFAULT)
def bf16(param_dict, other):
    if BF16 in param_dict.keys() and "not_ours" in other:
        return get_scalar_param(param_dict[BF16], "enabled", False)
    return param_dict.get("pipeline", {})
def process(table):
    del table["fp16"]
    table.pop("old")
"""
LAUNCH = """
parser.add_argument("--fsdp_offload", default="false", type=str)
group.add_argument("-x", "--fsdp_size", type=int)
group.add_argument("--other", action="store_true")
"""
#: as Slurm keeps the options of its commands
OPTIONS = """
static slurm_cli_opt_t slurm_opt_nodes = {
	.name = "nodes",
	.has_arg = required_argument,
	.val = 'N',
	.set_func = arg_set_nodes,
};
static slurm_cli_opt_t slurm_opt_wait = {
	.name = "wait",
	.has_arg = no_argument,
	.val = 'W',
	.set_func_sbatch = arg_set_wait,
};
static slurm_cli_opt_t slurm_opt_wait_srun = {
	.name = "wait",
	.has_arg = required_argument,
	.val = 'W',
	.set_func_srun = arg_set_wait_srun,
};
static slurm_cli_opt_t slurm_opt_exclusive = {
	.name = "exclusive",
	.has_arg = optional_argument,
	.val = LONG_OPT_EXCLUSIVE,
	.set_func_salloc = arg_set_exclusive,
	.set_func_srun = arg_set_exclusive,
};
static slurm_cli_opt_t slurm_opt_argv = {
	.name = "argv",
	.has_arg = required_argument,
	.get_func = arg_get_argv,
};
"""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import make_formats

    return make_formats


@pytest.fixture
def sources(made: ModuleType, tmp_path: Path) -> object:
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "launch.py").write_text(LAUNCH)
    (tmp_path / "options.c").write_text(OPTIONS)
    return made.Checkout(tmp_path)


@pytest.mark.parametrize(
    ("read", "keys"),
    [
        (
            "fields config.py:Zero",
            {
                "stage": "any",
                "bucket": "natural",
                "stage3_bucket": "natural",
                "steps": "positive",
                "loss": "number",
                "path": "text",
                "inner": "table",
                "names": "list",
                "on": "bool",
            },
        ),
        ("fields config.py:Trainer.Config", {"kind": "text", "loader": "table"}),
        ("fields config.py:Loader.Config", {"depth": "int"}),
        ("parameters config.py:", {"size": "any", "drop": "bool", "bf16": "table", "pipeline": "table"}),
        ("defaults config.py:TABLE", {"size": "any", "drop": "bool"}),
        ("removed config.py:process", {"fp16": "any", "old": "any"}),
        ("arguments launch.py:fsdp_", {"fsdp_offload": "bool", "fsdp_size": "int"}),
        ("arguments launch.py:@group", {"fsdp_size": "int", "other": "bool"}),
        ("texts launch.py:fsdp_", {"fsdp-offload": "text", "fsdp-size": "text"}),
        ("slurm options.c:srun", {"nodes": "text", "wait": "text", "exclusive": "text"}),
        ("slurm options.c:sbatch", {"nodes": "text", "wait": "text"}),
    ],
)
def test_keys_are_read_from_the_source(
    made: ModuleType, sources: object, read: str, keys: dict[str, str]
) -> None:
    assert made.keys_of({"read": [read]}, sources) == keys


@pytest.mark.parametrize(
    ("command", "switches"), [("sbatch", ["wait", "quick"]), ("srun", ["exclusive", "quick"])]
)
def test_slurms_switches_letters_and_plugins_are_those_of_a_command(
    made: ModuleType, sources: object, command: str, switches: list[str]
) -> None:
    place = f"options.c:{command}"
    recipe = {"name": command, "read": [f"slurm {place}"], "switches": place, "letters": place}
    plugins = {"options": ["image"], "switches": ["quick"]}
    part = made._part_of({**recipe, "short": {"n": "nodes"}}, sources, plugins)
    assert part["switches"] == switches
    assert part["short"] == {"N": "nodes", "W": "wait", "n": "nodes"}
    assert part["keys"].keys() >= {"nodes", "wait", "image", "quick"}


def test_keys_of_other_tables_are_left_out(made: ModuleType, sources: object) -> None:
    recipe = {"read": ["removed config.py:process"], "without": ["old"], "lenient": True}
    assert made.keys_of({**recipe, "also": {"new": "int"}}, sources) == {"fp16": "any", "new": "int"}


def test_choices_are_read_from_the_source(made: ModuleType, sources: object) -> None:
    table = {"device": ["config.py:Device"], "policy": ["config.py:POLICIES", 1], "other": ["a:b"]}
    table["kind"] = ["config.py:Trainer.Config.kind"]
    assert made.choices_of(table, sources) == {
        "device": ["none", "cpu"],
        "policy": ["A", "B", 1],
        "other": ["a:b"],
        "kind": ["a", "b"],
    }


@pytest.mark.parametrize(
    "stated", [{"kinds": {"gone": "int"}}, {"without": ["gone"]}, {"also": {"steps": "int"}}]
)
def test_a_recipe_that_is_out_of_date_is_told(
    made: ModuleType, sources: object, stated: dict[str, object]
) -> None:
    with pytest.raises(SystemExit, match=r"out of date about (gone|steps)"):
        made.keys_of({"read": ["fields config.py:Zero"], **stated}, sources)


def test_a_bare_repository_is_read_at_its_commit(made: ModuleType, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.py").write_text("NAMES = [1]\n")
    git = ["git", "-C", str(work), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    (work / "a.py").write_text("NAMES = [2]\n")
    checkout = made.Checkout(work / ".git")
    assert made.choices_of({"x": ["a.py:NAMES"]}, checkout) == {"x": [1]}
    assert checkout.names(".py") == ["a.py"]
    assert len(checkout.commit) >= 7


def test_changes_are_told_key_by_key(made: ModuleType) -> None:
    old = {"tables": [{"name": "a", "keys": {"x": "int", "y": "int"}}], "choices": {"z": [1, 2]}}
    new = {"tables": [{"name": "a", "keys": {"x": "bool"}}], "choices": {"z": [2, 3]}}
    assert made.changes(old, new) == [
        "choices.z: - ['1'] + ['3']",
        "tables.a.keys.x: int -> bool",
        "tables.a.keys.y: int -> None",
    ]
    assert made.changes(old, old) == []


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "script", "torchtitan", "torchtitan_python"])
def test_shipped_formats_have_what_the_recipe_states(name: str) -> None:
    recipe = tomllib.loads((ROOT / "scripts" / "data" / "formats.toml").read_text(encoding="utf-8"))[name]
    shipped = read_format(name)
    assert "make_formats.py" in (profiles_root() / "formats" / f"{name}.toml").read_text(encoding="utf-8")
    tables = {table["name"]: table["keys"] for table in shipped["tables"]}
    for stated in recipe["tables"]:
        keys = tables.pop(stated["name"])
        assert keys.items() >= {**stated.get("kinds", {}), **stated.get("also", {})}.items()
        assert not keys.keys() & set(stated.get("without", ()))
    assert not tables
