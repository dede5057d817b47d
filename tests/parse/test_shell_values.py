"""What variables of a script hold, as a launch's words show it."""

from __future__ import annotations

import pytest

from parastrat.parse.launch_script import script_tables
from parastrat.profiles.files import read_format


def read(text: str) -> dict[str, str]:
    """Return torchrun's options in a script; of none an empty table."""
    table, _ = script_tables(text, read_format("script"))[-1]
    found: dict[str, str] = table.get("torchrun", {})
    return found


@pytest.mark.parametrize(
    "text",
    [
        "N=8\ntorchrun --nproc-per-node $N t.py",
        "N=8;\nexport M=${N:-4}\ntorchrun --nproc-per-node=${M:-2} t.py",
        'L="torchrun --nproc-per-node 8 \\\n  --nnodes $NODES"\nsrun $L t.py',
        "A=8 B=t.py\nCMD='torchrun --nproc-per-node '\nCMD=\"$CMD$A $B\"\neval $CMD",
        'ARGS=(\n  --nproc-per-node 8  # GPUs\n  --log-dir "a b"\n)\ntorchrun "${ARGS[@]}" t.py',
        "ARGS=(--nnodes $NODES)\nARGS+=(--nproc-per-node 8)\ntorchrun ${ARGS[@]} t.py",
        "NODES=2\nN=$((NODES * 4))\nN=$(( $N + 2 - ${NODES} ))\ntorchrun --nproc-per-node $N t.py",
        "export N=8\nsrun bash -c 'torchrun --nproc-per-node $N t.py'",
        "L='torchrun --nproc-per-node 8'\nsrun bash -c \"$L t.py\"",
        "N=8\nrun() {\n torchrun --nproc-per-node $N t.py\n}\nrun",
        "E=''\ntorchrun $E --nproc-per-node 8 t.py",
        "source ~/.bashrc\nN=8\nsource venv/bin/activate\ntorchrun --nproc-per-node $N t.py",
        "if true; then\n M=1\nfi\nN=8\nfor I in 1 2; do\ntorchrun --nproc-per-node $N t.py\ndone",
    ],
)
def test_constants_are_put_in(text: str) -> None:
    assert read(text)["nproc-per-node"] == "8"


@pytest.mark.parametrize(
    "text",
    [
        "torchrun --nproc-per-node $N t.py",
        "N=8\nif true; then\n N=4\nfi\ntorchrun --nproc-per-node $N t.py",
        "N=8\n[ -z $M ] || N=4\ntorchrun --nproc-per-node $N t.py",
        "N=8\nread N\ntorchrun --nproc-per-node $N t.py",
        "N=8\nfor N in 1 2; do\ntorchrun --nproc-per-node $N t.py\ndone",
        "N=8\n((N++))\ntorchrun --nproc-per-node $N t.py",
        ": ${N:=8}\ntorchrun --nproc-per-node $N t.py",
        "N=8\nN=$(nproc)\ntorchrun --nproc-per-node $N t.py",
        "N=${N:-8}\ntorchrun --nproc-per-node $N t.py",
        "N=8\nsource settings.sh\ntorchrun --nproc-per-node $N t.py",
        "N=8\neval $(settings)\ntorchrun --nproc-per-node $N t.py",
        "N=8\nload() {\n source settings.sh\n}\nload\ntorchrun --nproc-per-node $N t.py",
        "N=8\nrun() {\n torchrun --nproc-per-node $N t.py\n}\nN=4\nrun",
        "N=8\nIFS=,\ntorchrun --nproc-per-node $N t.py",
        "#!/bin/zsh\nN=8\ntorchrun --nproc-per-node $N t.py",
        # the step's own shell does not know it
        "N=8\nsrun bash -c 'torchrun --nproc-per-node $N t.py'",
        "N=8\ntorchrun --nproc-per-node '$N' t.py",
        'N=8\ntorchrun --nproc-per-node "\\$N" t.py',
        "N=8\nN=$((N / 3))\ntorchrun --nproc-per-node $N t.py",
    ],
)
def test_what_is_not_certain_stays_open(text: str) -> None:
    assert "N" in read(text)["nproc-per-node"]


@pytest.mark.parametrize(
    "text",
    [
        # one word, and a launcher that is chosen
        'L="torchrun --nproc-per-node 8"\nsrun "$L" t.py',
        'if true; then\nL="torchrun"\nelse\nL="accelerate launch"\nfi\nsrun $L t.py',
    ],
)
def test_no_launch_is_made_up(text: str) -> None:
    assert read(text) == {}


def test_what_a_value_leaves_to_the_step_stays_there() -> None:
    text = 'L="torchrun --node-rank \\$SLURM_NODEID --nnodes $N"\nsrun bash -c "$L t.py"'
    table, _ = script_tables(text, read_format("script"))[0]
    assert table["torchrun"]["node-rank"] == "$SLURM_NODEID"
    assert table["started"]["shell"] == "own"


@pytest.mark.parametrize(
    ("first", "doubling", "used"),
    [("X=ab", "X=$X$X", "$X"), ("X=(a b)", 'X=("${X[@]}" "${X[@]}")', '"${X[@]}"')],
)
def test_values_that_grow_beyond_a_command_line_stay_open(first: str, doubling: str, used: str) -> None:
    text = "\n".join([first, *[doubling] * 60, f"torchrun --role {used} t.py"])
    assert read(text)["role"] == used.strip('"')
