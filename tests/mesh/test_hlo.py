"""Reading compiled text: counts, sizes, scopes, loops, copies."""

import pytest

from sdjax.mesh.chips import CHIPS, chip_of
from sdjax.mesh.hlo import Instruction, Shape, read_program

TEXT = """
HloModule jit_run, is_scheduled=true

%below.6 (p: (s32[], f32[8])) -> pred[] {
  %constant.3 = s32[]{:T(128)} constant(4)
  %counter.1 = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt.2 = pred[]{:T(512)} compare(%counter.1, %constant.3), direction=LT
}

%inner.1 (p: s32[]) -> s32[] {
  %fusion.6 = f32[8]{0} fusion(%x), kind=kLoop, calls=%elsewhere, backend_config={"estimated_cycles":"7"}
  ROOT %all-gather.1 = f32[8,1,8]{2,1,0:T(1,128)S(1)} all-gather(%p), metadata={op_name="jit(run)/while/body/judge/max"}
}

%fused.2 (p: f32[8]) -> f32[8] {
  %all-reduce.9 = f32[8]{0} all-reduce(%p), to_apply=%add
}

%body.3 (p: (bf16[8,1,4096,128], s32[])) -> (bf16[8,1,4096,128], s32[]) {
  %all-reduce.1 = bf16[8,4096]{1,0:T(8,128)(2,1)S(1)} all-reduce(%x), metadata={op_name="jit(run)/while/body/dot"}
  %all-reduce-start.2 = (f32[4]{0}, f32[4]{0}) all-reduce-start(%y), metadata={op_name="jit(run)/while/body/propose/dot"}
  %all-reduce-done.2 = f32[4]{0} all-reduce-done(%all-reduce-start.2)
  %fusion.4 = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused.2, backend_config={"estimated_cycles":"100"}
  %while.5 = (s32[], /*index=1*/f32[8]{0:T(8)}) while(%t), condition=%below.6, body=%inner.1
  %copy-start.6 = (bf16[8,1,4096,128]{3,2,1,0}, bf16[8,1,4096,128]{3,2,1,0}, u32[]{:S(2)}) copy-start(%c)
  %copy-start.7 = (bf16[8,1,4096,128]{3,2,1,0:S(1)}, bf16[8,1,4096,128]{3,2,1,0}, u32[]{:S(2)}) copy-start(%c)
  %copy-start.8 = (bf16[8,1,4096,128]{3,2,1,0}, bf16[8,1,4096,128]{3,2,1,0:S(1)}, u32[]{:S(2)}) copy-start(%c)
  ROOT %tuple = (bf16[8,1,4096,128]{3,2,1,0}, s32[]) tuple(%c, %i), backend_config={"estimated_cycles":"20"}
}

ENTRY %main.4 (p: bf16[8]) -> bf16[8] {
  %all-gather.7 = bf16[64]{0} all-gather(%p), backend_config={"estimated_cycles":"5000"}
  ROOT %while.8 = (bf16[8,1,4096,128], s32[]) while(%t), condition=%never, body=%body.3
}
"""


def test_a_step_is_the_loops_body_with_all_that_it_calls():
    step = read_program(TEXT, loop=True)
    assert step.root == "body.3" and step.cycles == 120 + 4 * 7
    assert [(i.op, i.looped) for i in step.collectives] == [
        ("all-gather", True),
        ("all-reduce", False),
        ("all-reduce", False),
        ("all-reduce-start", False),
    ]


def test_without_a_loop_the_whole_program_is_read():
    whole = read_program(TEXT)
    assert whole.cycles == 5000 + 120 + 4 * 7 and len(whole.collectives) == 5


def test_sizes_and_memories():
    step = read_program(TEXT, loop=True)
    reduce = next(i for i in step.collectives if i.computation == "body.3")
    assert reduce.shapes == (Shape("bf16", (8, 4096), True),) and reduce.shapes[0].bytes == 65_536
    assert Shape("f32", (), False).bytes == 4 and Shape("pred", (3,), False).bytes == 3


@pytest.mark.parametrize(
    "op, made",
    [
        ("all-reduce", [0, 1]),
        ("all-reduce-start", [0, 1]),
        ("all-gather-start", [1]),
        ("collective-permute-start", [1]),
        ("all-to-all", [0, 1]),
    ],
)
def test_bytes_are_those_of_all_that_an_exchange_makes(op, made):
    """Several arrays that the compiler has joined, or what comes after what it is given."""
    arrays = Shape("f32", (4,), False), Shape("bf16", (32, 8), False)
    marks = (Shape("u32", (), False),) * 2 if "permute" in op else ()
    exchange = Instruction(op, arrays + marks, "", "body", False, 0)
    assert exchange.results == tuple(arrays[i] for i in made)
    assert exchange.bytes == sum((16, 512)[i] for i in made)


def test_copies_in_hbm_are_told_from_those_to_and_from_the_core():
    step, size = read_program(TEXT, loop=True), 8 * 4096 * 128
    assert len(step.copies(size)) == len(step.written_back(size)) == 1
    assert step.copies(7) == []


CHOOSING = """
%narrow.1 (p: f32[8]) -> f32[8] {
  ROOT %all-reduce.1 = f32[8]{0} all-reduce(%p), to_apply=%add
}

%wide.2 (p: f32[8]) -> f32[8] {
  %all-reduce.2 = f32[16]{0} all-reduce(%p), to_apply=%add
  ROOT %all-reduce.3 = f32[8]{0} all-reduce(%all-reduce.2), to_apply=%add
}

ENTRY %main (i: s32[], p: f32[8]) -> f32[8] {
  ROOT %which = f32[8]{0} conditional(%i, %p, %p), branch_computations={%narrow.1, %wide.2}
}
"""


def test_of_branches_the_one_with_the_most_exchanges_counts():
    assert [i.computation for i in read_program(CHOOSING).collectives] == ["wide.2"] * 2


def test_an_exchange_that_is_written_in_parts_counts_once():
    gathers = "all-gather(%p), channel_id=23, dimensions={{0}}"
    part = "%fused.{0} (p: f32[8]) -> f32[64] {{\n  ROOT %g.{0} = f32[64]{{0}} " + gathers + "\n}}\n"
    calls = "".join(f"  %f.{i} = f32[64]{{0}} fusion(%p), kind=kCustom, calls=%fused.{i}\n" for i in range(3))
    text = "".join(map(part.format, range(3))) + f"ENTRY %main (p: f32[8]) -> f32[64] {{\n{calls}}}\n"
    assert len(read_program(text).collectives) == 1
    assert len(read_program(text.replace("channel_id=23, ", "")).collectives) == 3


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="has no loop"):
        read_program("ENTRY %main (p: f32[]) -> f32[] {\n  ROOT %x = f32[] negate(%p)\n}\n", loop=True)
    for topology in ("v9:2x2", "v5e"):
        with pytest.raises(ValueError, match="the topology is"):
            chip_of(topology)
    assert chip_of("v5p:2x2x4") is CHIPS["v5p"]
