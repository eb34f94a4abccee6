//! Reductions of 16-bit floating point are rounded once, not after each pair of values.

use std::fmt::Debug;

use half::{bf16, f16};
use oxshmem::{Operations, Pe, ReduceOp, Reducible};

use crate::Outcome;

/// Elements of a reduction: what goes in packets, and what does not.
const LENGTHS: [usize; 4] = [1, 9, 1000, 20_000];

/// 16-bit floating point.
trait Sixteen: Reducible + PartialEq + Debug {
    /// A number to which the next larger one of this type is at the distance 2.
    const LARGE: f32;
    fn round(wide: f32) -> Self;
    fn wide(self) -> f32;
}

impl Sixteen for f16 {
    const LARGE: f32 = 2048.0;
    fn round(wide: f32) -> Self {
        Self::from_f32(wide)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl Sixteen for bf16 {
    const LARGE: f32 = 256.0;
    fn round(wide: f32) -> Self {
        Self::from_f32(wide)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// What a PE contributes to element `index`. Sums: one large value, to which each of the others is
/// too small to change anything; scaled by powers of two, which changes no digit. Products: factors
/// from 1 to 1.5.
fn value<T: Sixteen>(op: ReduceOp, pe: usize, index: usize) -> T {
    T::round(match op {
        ReduceOp::Sum => (if pe == 0 { T::LARGE } else { 1.0 }) * [1.0, 2.0, -1.0, -0.5][index % 4],
        _ => 1.0 + ((index * 7 + pe * 13) % 64) as f32 / 128.0,
    })
}

/// `float_sums [OP...]`: reductions by these operations, both if there are none, by the algorithms
/// that the settings name.
pub fn float_sums(args: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let ops = [ReduceOp::Sum, ReduceOp::Prod];
    for op in ops.into_iter().filter(|op| args.is_empty() || args.contains(&format!("{op:?}"))) {
        reductions::<f16>(&pe, op)?;
        reductions::<bf16>(&pe, op)?;
    }
    Ok(pe.finalize()?)
}

fn reductions<T: Sixteen>(pe: &Pe, op: ReduceOp) -> Outcome {
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let world = pe.team_world();
    let apply = |a: f32, b: f32| if op == ReduceOp::Sum { a + b } else { a * b };
    let once = |index: usize| {
        let values = (0..n).map(|pe| value::<T>(op, pe, index).wide());
        T::round(values.reduce(apply).unwrap_or_default())
    };
    let by_pairs = |index: usize| {
        let values = (0..n).map(|pe| value::<T>(op, pe, index));
        values.reduce(|a, b| T::round(apply(a.wide(), b.wide())))
    };
    assert!((0..64).any(|index| by_pairs(index) != Some(once(index))), "{n} PEs are too few to see a difference");
    for length in LENGTHS {
        let (src, dst) = (pe.alloc::<T>(length * n)?, pe.alloc::<T>(length)?);
        let own: Vec<T> = (0..length * n).map(|index| value(op, me, index)).collect();
        pe.write(&src, &own)?;
        // The same bits in repeated runs, with blocks that are as fast or slow as they are.
        for _ in 0..3 {
            pe.reduce(&world, op, &dst, src.view(..length))?;
            let expected: Vec<T> = (0..length).map(once).collect();
            assert_eq!(pe.read(&dst)?, expected, "reduce {op:?} of {length}");
            pe.reducescatter(&world, op, &dst, &src)?;
            let expected: Vec<T> = (me * length..(me + 1) * length).map(once).collect();
            assert_eq!(pe.read(&dst)?, expected, "reducescatter {op:?} of {length}");
        }
        pe.reduce(&world, op, src.view(..length), src.view(..length))?;
        let expected: Vec<T> = (0..length).map(once).collect();
        assert_eq!(pe.read(src.view(..length))?, expected, "reduce in place {op:?} of {length}");
    }
    Ok(())
}
