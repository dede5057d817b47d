from __future__ import annotations

from pathlib import Path

from cli.conftest import Typed


def test_a_plan_is_explained_by_where_its_memory_goes(tmp_path: Path, typed: Typed) -> None:
    path = tmp_path / "plan.toml"
    estimated = typed("estimate", "gpt2", "--on", "dgx-h100:1", "-o", path)
    done = typed("explain", path)
    assert done.code == 0
    assert done.out.startswith("gpt2 with FSDP2 over 8 GPUs fits: ")
    start = estimated.out.index("Memory through a step of the fullest GPU")
    assert estimated.out[start : estimated.out.index("Time of a step")].strip() in done.out
    table = typed("explain", path, "--json").answer
    assert table["schema"] == "parastrat.estimate/1"
    assert any(phase["peak"] for phase in table["memory_phases"][0]["phases"])


def test_a_plan_that_is_not_there_is_told(tmp_path: Path, typed: Typed) -> None:
    done = typed("explain", tmp_path / "plan.toml")
    assert done.code == 2
    assert done.err.startswith("error: ")


def test_a_rule_is_still_a_code(typed: Typed) -> None:
    assert typed("explain", "ps106").out.startswith("PS106")


def test_a_plan_that_breaks_a_rule_is_no_plan_that_fits(tmp_path: Path, typed: Typed) -> None:
    path = tmp_path / "plan.toml"
    assert typed("estimate", "gpt2", "--on", "dgx-h100:1", "--tp", 8, "-o", path).code == 1
    assert "cannot run, it breaks 2 rules" in typed("explain", path).out


LOG = """\
step 1 loss 2.3
[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:41221
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.
"""


def test_a_log_is_explained_by_its_failures(tmp_path: Path, typed: Typed) -> None:
    path = tmp_path / "slurm-17.out"
    path.write_text(LOG)
    done = typed("explain", path)
    assert done.code == 0
    cause, after = done.out.split("\n\n")
    assert ":3: [rank0]" in " ".join(cause.split())
    assert "the device has no memory left" in cause
    assert "another rank ended first" in after
    told = typed("explain", path, "--json").answer["failures"]
    assert [(each["line"], each["blames"]) for each in told] == [(3, "memory"), (2, "peer")]


def test_a_log_without_a_known_failure_is_told(tmp_path: Path, typed: Typed) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"step 1\xff\nKeyError: 'labels'\n")
    done = typed("explain", path)
    assert done.code == 1
    assert "is a failure that is known here" in " ".join(done.out.split())
    assert typed("explain", path, "--json").answer["failures"] == []
