# ruff: noqa: INP001 - a script's part
"""What configuration readers say of their keys, read from their source without running it."""

from __future__ import annotations

import ast
import mmap
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Iterator

Keys = dict[str, str]

_KINDS = {
    "int": "int",
    "float": "number",
    "bool": "bool",
    "str": "text",
    "str_to_bool": "bool",
    "Path": "text",
}
_SWITCHES = ("store_true", "store_false")
#: other actions without a value: torch's takes an environment variable for the default
_FLAGS = ("help", "check_env")
_C = (".cc", ".h", ".cu", ".cuh", ".hpp")
#: the readers' own names for the table that a user wrote
_TABLES = {"param_dict", "ds_config", "monitor_dict", "config_dict"}


@dataclass(frozen=True)
class Checkout:
    """A project's source: a git repository (with or without a work tree), or an installed package."""

    path: Path
    #: what of a repository is read: a tag or a commit
    rev: str = "HEAD"

    def text(self, name: str) -> str:
        """Return a file's text; in a repository that of the commit."""
        if self.is_repository:
            return self._git("show", f"{self.rev}:{name}")
        return (self.path / name).read_text(encoding="utf-8")

    def names(self, *suffixes: str) -> list[str]:
        """Return the files below, by their ends."""
        if self.is_repository:
            found = self._git("ls-tree", "-r", "--name-only", self.rev).splitlines()
        else:
            found = [str(file.relative_to(self.path)) for file in self.path.rglob("*")]
        return sorted(name for name in found if name.endswith(suffixes))

    @property
    def is_repository(self) -> bool:
        """Whether git knows the source."""
        return (self.path / ".git").exists() or (self.path / "HEAD").exists()

    @property
    def commit(self) -> str | None:
        """The commit, shortened; None of a package."""
        if not self.is_repository:
            return None
        return self._git("rev-parse", "--short=7", f"{self.rev}^{{commit}}").strip()

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


@cache
def tree_of(checkout: Checkout, name: str) -> ast.Module:
    """Return a file's syntax."""
    return ast.parse(checkout.text(name))


def fields(checkout: Checkout, place: str) -> Keys:
    """Return a dataclass's or pydantic model's fields, with their aliases, by ``FILE:CLASS``."""
    found: Keys = {}
    tree = tree_of(checkout, place.partition(":")[0])
    # a dataclass has no bases, an enumeration has
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.bases}
    for node in _named(checkout, place, ast.ClassDef).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            written = ast.unparse(node.annotation)
            kind = "table" if written in classes else _of_annotation(written, node.value)
            found[node.target.id] = kind
            alias = _keyword(node.value, "alias")
            if alias is not None:
                found[alias] = kind
    return found


def _of_annotation(written: str, value: ast.expr | None) -> str:
    bare = re.sub(r"^Optional\[(.*)\]$", r"\1", written).removesuffix(" | None")
    if bare == "int":
        least = _keyword(value, "ge")
        return {0: "natural", 1: "positive"}.get(least, "int") if least is not None else "int"
    kinds = dict.fromkeys(_of_type(part) for part in bare.split(" | ") if part != "None")
    return "any" if "any" in kinds else " or ".join(kinds)


def _of_type(written: str) -> str:
    if written.lower().startswith("list"):
        return "list"
    if written.startswith("Literal["):
        return "text"
    is_table = written.lower().startswith("dict") or written.endswith("Config")
    return "table" if is_table else _KINDS.get(written, "any")


def _keyword(call: ast.AST | None, name: str) -> Any:
    """Return a literal argument of a call by its keyword; None where there is none."""
    if not isinstance(call, ast.Call):
        return None
    values = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def flags(checkout: Checkout, place: str) -> Keys:
    """Return the options that Megatron-LM makes of a dataclass's fields, by ``FILE:CLASS``.

    A field that is true by default has switches against it alone, as ArgumentGroupFactory makes them.
    """
    found: Keys = {}
    for node in _named(checkout, place, ast.ClassDef).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        option, written = node.target.id.replace("_", "-"), ast.unparse(node.annotation)
        named = _argument_names(node.value)
        if named:
            is_switch = "bool" in written
            found |= dict.fromkeys(named, "bool" if is_switch else _of_word(written))
        elif re.fullmatch(r"(?:Optional\[)?bool\]?(?: \| None)?", written) is None:
            found[option] = _of_word(written)
        elif isinstance(node.value, ast.Constant) and node.value.value is True:
            found |= {f"no-{option}": "bool", f"disable-{option}": "bool"}
        else:
            found[option] = "bool"
    return found


def _of_word(written: str) -> str:
    """Return the kind of a shell's words for an annotated field."""
    return "list" if "list[" in written.lower() else _as_word(_of_annotation(written, None))


def _as_word(kind: str) -> str:
    """Return what a shell hands over for a kind: numbers, or text."""
    return kind if kind in ("int", "number") else "text"


def _argument_names(value: ast.expr | None) -> list[str]:
    """Return the options that a field's metadata names for it, as ``argparse_meta`` does."""
    for node in ast.walk(value) if value is not None else ():
        if isinstance(node, ast.Dict):
            for key, names in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "arg_names":
                    return [name.removeprefix("--") for name in ast.literal_eval(names)]
    return []


def options(checkout: Checkout, place: str) -> Keys:
    """Return the options of a command line as a shell's words: switches, lists, numbers, and other text."""
    found: Keys = {}
    for call in ast.walk(tree_of(checkout, place)):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            action, times = _keyword_text(call, "action"), _keyword_text(call, "nargs")
            # with a question mark the value may be left out
            single = "text" if times else _as_word(_of_argument(call))
            several = times not in ("", "1", "?")
            kind = "bool" if action in (*_SWITCHES, *_FLAGS) else "list" if several else single
            names = [str(arg.value) for arg in call.args if isinstance(arg, ast.Constant)]
            found |= {name[2:]: kind for name in names if name.startswith("--")}
    return found


def definition(checkout: Checkout, place: str) -> Keys:
    """Return the fields of an object of a Kubernetes resource's definition, by ``FILE:PATH`` (dotted).

    ``*`` stands for the values of a map, or the entries of a list.
    """
    name, _, path = place.partition(":")
    table = YAML(typ="safe").load(checkout.text(name))["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in filter(None, path.split(".")):
        inner = table.get("additionalProperties") or table.get("items")
        table = inner if part == "*" else table["properties"][part]
    return {key: _of_schema(value) for key, value in table["properties"].items()}


def _of_schema(value: dict[str, Any]) -> str:
    if value.get("x-kubernetes-int-or-string"):
        return "any"
    if value["type"] == "integer":
        rules = [each["rule"] for each in value.get("x-kubernetes-validations", ())]
        return "positive" if "self >= 1" in rules else "natural" if value.get("minimum") == 0 else "int"
    return {"string": "text", "boolean": "bool", "array": "list", "object": "table"}[value["type"]]


def removed(checkout: Checkout, place: str) -> Keys:
    """Return the keys that a function takes out of its table, because only earlier versions had them."""
    found: Keys = {}
    for node in ast.walk(_named(checkout, place, ast.FunctionDef)):
        if isinstance(node, ast.Delete) and isinstance(node.targets[0], ast.Subscript):
            found[ast.literal_eval(node.targets[0].slice)] = "any"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            found[ast.literal_eval(node.args[0])] = "any"
    return found


def arguments(checkout: Checkout, place: str) -> Keys:
    """Return the options of a command line, by ``FILE:PREFIX`` or ``FILE:@GROUP`` (its variable)."""
    name, _, wanted = place.partition(":")
    found: Keys = {}
    for call in ast.walk(tree_of(checkout, name)):
        if not (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "add_argument"
        ):
            continue
        group = ast.unparse(call.func.value)
        for written in (arg.value for arg in call.args if isinstance(arg, ast.Constant)):
            option = str(written).removeprefix("--")
            if str(written).startswith("--") and (
                group == wanted[1:] if wanted.startswith("@") else option.startswith(wanted)
            ):
                found[option] = _of_argument(call)
    return found


def texts(checkout: Checkout, place: str) -> Keys:
    """Return the options of a command line as a shell's words: with hyphens, each of them text."""
    return {option.replace("_", "-"): "text" for option in arguments(checkout, place)}


def words(checkout: Checkout, place: str) -> Keys:
    """Return the options of a command line as they are declared: numbers, or text."""
    return {option: _as_word(kind) for option, kind in arguments(checkout, place).items()}


def slurm(checkout: Checkout, place: str) -> Keys:
    """Return the options of one of Slurm's commands, by ``FILE:COMMAND``."""
    return {option.name: "text" for option in _slurm_options(checkout, place)}


def slurm_letters(checkout: Checkout, place: str) -> dict[str, str]:
    """Return the options of one of Slurm's commands by their letters."""
    return {option.letter: option.name for option in _slurm_options(checkout, place) if option.letter}


def slurm_switches(checkout: Checkout, place: str) -> list[str]:
    """Return the options of one of Slurm's commands that take no value."""
    return [option.name for option in _slurm_options(checkout, place) if not option.takes_value]


class _SlurmOption(NamedTuple):
    name: str
    letter: str
    #: a word of its own: an optional value stands behind an equals sign alone
    takes_value: bool


def _slurm_options(checkout: Checkout, place: str) -> Iterator[_SlurmOption]:
    """Yield the options of a command, of the structures in which Slurm keeps those of all its commands."""
    name, _, command = place.partition(":")
    for body in re.findall(r"slurm_cli_opt_t \w+ = \{(.*?)\n\};", checkout.text(name), re.DOTALL):
        option = re.search(r'\.name = "([^"]+)"', body)
        if option is None or not re.search(rf"\.set_func(?:_{command})? *=", body):
            continue
        letter = re.search(r"\.val = '(.)'", body)
        yield _SlurmOption(option[1], letter[1] if letter else "", "required_argument" in body)


def switches(checkout: Checkout, name: str) -> list[str]:
    """Return the options of a command line that take no value."""
    return [
        str(arg.value).removeprefix("--")
        for call in ast.walk(tree_of(checkout, name))
        if isinstance(call, ast.Call) and _keyword_text(call, "action") in (*_SWITCHES, *_FLAGS)
        for arg in call.args
        if isinstance(arg, ast.Constant) and str(arg.value).startswith("--")
    ]


def _keyword_text(call: ast.Call, name: str) -> str:
    """Return an argument of a call by its keyword as it is written, without quotes."""
    return next((ast.unparse(each.value).strip("'") for each in call.keywords if each.arg == name), "")


def _of_argument(call: ast.Call) -> str:
    if _keyword(call, "action") in _SWITCHES or _keyword(call, "default") in ("true", "false"):
        return "bool"
    kinds = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "type"]
    return _KINDS.get(kinds[0], "any") if kinds else "any"


def parameters(checkout: Checkout, place: str) -> Keys:
    """Return the keys that the functions of a file look up in the user's table, by ``FILE:CONSTANTS,...``.

    ``CONSTANTS`` are the files that give the names of keys. A key that is looked into is a table, one with
    a default value is of its kind.
    """
    name, _, others = place.partition(":")
    return _keys_looked_up(checkout, name, others, _TABLES)


def lookups(checkout: Checkout, place: str) -> Keys:
    """Return the keys that a file looks up in a table of its own, by ``FILE:TABLE:CONSTANTS,...``.

    ``TABLE`` is what its functions call it; the rest is as for ``parameters``.
    """
    name, table, others = place.split(":")
    return _keys_looked_up(checkout, name, others, {table})


def _keys_looked_up(checkout: Checkout, name: str, others: str, tables: set[str]) -> Keys:
    known: dict[str, Any] = {}
    for file in [*filter(None, others.split(",")), name]:
        known |= dict(_constants(tree_of(checkout, file)))
    found: Keys = {}
    for node in ast.walk(tree_of(checkout, name)):
        key, kind = _looked_up(node, known, tables)
        if isinstance(key, str) and (kind != "any" or key not in found):
            found[key] = kind
    return found


def _looked_up(node: ast.AST, known: dict[str, Any], tables: set[str]) -> tuple[Any, str]:
    """Return the key that an expression looks up in the table, and its kind; None where it does not."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
        table = node.comparators[0]
        if isinstance(table, ast.Call) and isinstance(table.func, ast.Attribute):
            table = table.func.value  # .keys()
        return (_value(node.left, known), "any") if _is_table(table, tables) else (None, "")
    if isinstance(node, ast.Subscript) and _is_table(node.value, tables):
        return _value(node.slice, known), "any"
    if not isinstance(node, ast.Call):
        return None, ""
    if (
        isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and _is_table(node.func.value, tables)
    ):
        is_table = len(node.args) > 1 and ast.unparse(node.args[1]) == "{}"
        return _value(node.args[0], known), "table" if is_table else "any"
    if ast.unparse(node.func) == "get_scalar_param":
        if _is_table(node.args[0], tables):
            return _value(node.args[1], known), _of_value(_value(node.args[2], known))
        if isinstance(node.args[0], ast.Subscript) and _is_table(node.args[0].value, tables):
            return _value(node.args[0].slice, known), "table"
    return None, ""


def _is_table(node: ast.AST, tables: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in tables


def _of_value(value: Any) -> str:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "number"), (str, "text"), (dict, "table")):
        if isinstance(value, kind):
            return name
    return "any"


def defaults(checkout: Checkout, place: str) -> Keys:
    """Return the keys of a table of defaults, by ``FILE:NAME``, with the kinds of their values."""
    name, _, table = place.partition(":")
    tree = tree_of(checkout, name)
    known = dict(_constants(tree))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table:
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {_value(key, known): _of_value(_value(value, known)) for key, value in pairs}
    raise LookupError(place)


def choices(checkout: Checkout, place: str) -> list[Any]:
    """Return a constant list or an enumeration's values by ``FILE:NAME``, or ``CLASS.FIELD``'s."""
    name, _, wanted = place.partition(":")
    if "." in wanted:
        owner, _, field = wanted.rpartition(".")
        for node in _named(checkout, f"{name}:{owner}", ast.ClassDef).body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == field:
                return _literals(node.annotation)
    for node in ast.walk(tree_of(checkout, name)):
        if isinstance(node, ast.ClassDef) and node.name == wanted:
            return [
                each.value.value
                for each in node.body
                if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
            ]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == wanted:
            return list(ast.literal_eval(node.value))
    raise LookupError(place)


def _literals(annotation: ast.expr) -> list[Any]:
    """Return what ``Literal[...]`` lists in an annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            listed = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return [ast.literal_eval(value) for value in listed]
    raise LookupError(ast.unparse(annotation))


def nccl_variables(checkout: Checkout) -> set[str]:
    """Return the variables that NCCL declares as parameters or asks the environment for."""
    text = "\n".join(checkout.text(name) for name in checkout.names(*_C) if name.startswith("src/"))
    return (
        {f"NCCL_{name}" for name in re.findall(r'NCCL_PARAM\(\w+,\s*"([A-Z0-9_]+)"', text)}
        | set(re.findall(r"DEFINE_NCCL_PARAM\([^,]+,[^,]+,\s*(NCCL_[A-Z0-9_]+)", text))
        | set(re.findall(r'"(NCCL_[A-Z0-9_]+)"', text))
    )


def torch_variables(package: Path) -> set[str]:
    """Return the variables of NCCL and Gloo that a torch package names: headers, Python and libraries."""
    pattern = re.compile(rb"[\"\x00]((?:TORCH_NCCL|NCCL|GLOO)_[A-Z0-9_]+)(?=[\"\x00])")
    places = ("include/torch/csrc/distributed/**/*.hpp", "distributed/**/*.py", "lib/libtorch_c*.so")
    files = [file for place in places for file in package.glob(place) if file.stat().st_size]
    found: set[str] = set()
    for file in files:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found |= {match[1].decode() for match in pattern.finditer(data)}
    return found


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names of a module that are plain values."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.UnaryOp):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, ast.literal_eval(node.value)


def _value(node: ast.AST, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    return known.get(node.id) if isinstance(node, ast.Name) else None


def _named(checkout: Checkout, place: str, kind: type[ast.ClassDef | ast.FunctionDef]) -> Any:
    name, _, wanted = place.partition(":")
    *outer, last = wanted.split(".")
    around: ast.AST = tree_of(checkout, name)
    for part in outer:
        around = next(
            node for node in ast.walk(around) if isinstance(node, ast.ClassDef) and node.name == part
        )
    for node in ast.walk(around):
        if isinstance(node, kind) and node.name == last:
            return node
    raise LookupError(place)
