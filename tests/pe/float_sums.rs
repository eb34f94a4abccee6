//! Reductions of floating point: 16-bit sums and products are rounded once, not after each pair of
//! values; least and greatest values do not depend on which member has a NaN.

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

/// A floating-point type, from and to what has all of the values used here.
trait Float: Reducible + Debug {
    fn make(wide: f32) -> Self;
    fn wide(self) -> f64;
}

macro_rules! floats {
    ($($type:ty: $make:expr, $wide:expr;)*) => {$(
        impl Float for $type {
            fn make(wide: f32) -> Self {
                $make(wide)
            }
            fn wide(self) -> f64 {
                $wide(self)
            }
        }
    )*};
}

floats! {
    f32: f32::from, f64::from;
    f64: f64::from, f64::from;
    f16: f16::from_f32, f16::to_f64;
    bf16: bf16::from_f32, bf16::to_f64;
}

/// What a PE contributes to element `index`: a NaN of one PE, or of all; a zero, negative at one PE
/// or positive at one; and numbers.
fn unordered(pe: usize, n: usize, index: usize) -> f32 {
    let is_chosen = index / 5 % n == pe;
    match index % 5 {
        0 if is_chosen => f32::NAN,
        1 => f32::NAN,
        2 => {
            if is_chosen {
                -0.0
            } else {
                0.0
            }
        }
        3 => {
            if is_chosen {
                0.0
            } else {
                -0.0
            }
        }
        _ => ((index * 7 + pe * 13) % 64) as f32 - 32.0,
    }
}

/// `float_orders`: the least and the greatest of floating-point values, by the algorithms that the
/// settings name. A NaN loses, whichever member has it, and -0 is less than +0.
pub fn float_orders(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    orders::<f32>(&pe)?;
    orders::<f64>(&pe)?;
    orders::<f16>(&pe)?;
    orders::<bf16>(&pe)?;
    Ok(pe.finalize()?)
}

fn orders<T: Float>(pe: &Pe) -> Outcome {
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let world = pe.team_world();
    // `total_cmp` has -0 before +0.
    let expected = |op: ReduceOp, index: usize| {
        let values = (0..n).map(|pe| f64::from(unordered(pe, n, index))).filter(|value| !value.is_nan());
        let found = if op == ReduceOp::Min { values.min_by(f64::total_cmp) } else { values.max_by(f64::total_cmp) };
        found.unwrap_or(f64::NAN)
    };
    let is_same = |seen: f64, wanted: f64| seen.to_bits() == wanted.to_bits() || (seen.is_nan() && wanted.is_nan());
    for (length, op) in LENGTHS.into_iter().flat_map(|length| [(length, ReduceOp::Min), (length, ReduceOp::Max)]) {
        let (src, dst) = (pe.alloc::<T>(length * n)?, pe.alloc::<T>(length)?);
        pe.write(&src, &(0..length * n).map(|index| T::make(unordered(me, n, index))).collect::<Vec<T>>())?;
        let check = |first: usize, call: &str| -> Outcome {
            for (index, seen) in (first..).zip(pe.read(&dst)?) {
                let (seen, wanted) = (seen.wide(), expected(op, index));
                assert!(
                    is_same(seen, wanted),
                    "{call} {op:?} of {length} {}: element {index} is {seen}, not {wanted}",
                    T::NAME
                );
            }
            Ok(())
        };
        pe.reduce(&world, op, &dst, src.view(..length))?;
        check(0, "reduce")?;
        pe.reducescatter(&world, op, &dst, &src)?;
        check(me * length, "reducescatter")?;
    }
    Ok(())
}
