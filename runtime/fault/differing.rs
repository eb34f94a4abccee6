//! Which argument of a collective differs between two members, from the hashes that these announce.
//!
//! A hash is the upper bits of a sum, to which each argument adds a multiple of a number of its own
//! (`announced_by` in `detail/collective.h`). So the difference of two hashes says whether one
//! argument alone can make it, and by how much that differs. The members compare whole hashes: what
//! is found here is for the message alone.

use crate::abi::{self, Call};

/// What each argument is multiplied with.
const SIZE: u64 = 0x9e37_79b9_7f4a_7c15;
const DST: u64 = 0xbf58_476d_1ce4_e5b9;
const SRC: u64 = 0x94d0_49bb_1331_11eb;
const EXTRA: u64 = 0xd6e8_feb8_6659_fd93;
const HOW: u64 = 0xa076_1d64_78bd_642f;
/// What `extra_of` in `collectives.h` multiplies the element's bytes and dst's stride with.
const ELEMENT: u64 = SIZE.wrapping_mul(DST);
const DST_STRIDE: u64 = DST;

/// Bits of the sum below the hash.
const LOW_BITS: u32 = 64 - abi::CALL_SHIFT;

/// Differences of sizes, addresses and strides that are looked for: all up to this one,
const NEAR: u64 = 4096;
/// and multiples of this number,
const STEP: u64 = 512;
/// so many of them.
const STEPS: u64 = 16384;
/// The highest element type and operator.
const TYPES: u64 = abi::Type::Bfloat16 as u64;
const OPERATORS: u64 = abi::ReduceOp::Prod as u64;
/// Differences of scopes, algorithms and numbers of blocks that are looked for are less than this.
const HOWS: u64 = 1024;

/// What two members have announced, less their call.
#[derive(Debug, Clone, Copy)]
struct Hashes {
    theirs: u32,
    mine: u32,
}

impl Hashes {
    /// Returns whether the members' sums may differ by `by`.
    fn may_differ_by(self, by: u64) -> bool {
        let mask = (1 << abi::CALL_SHIFT) - 1;
        let seen = self.theirs.wrapping_sub(self.mine) & mask;
        #[allow(clippy::cast_possible_truncation)] // The shift leaves 28 bits.
        let least = (by >> LOW_BITS) as u32;
        // What is below the hash may carry.
        seen == least || seen == (least + 1) & mask
    }

    /// Returns whether the sums may differ by one of these multiples of `factor`, up or down.
    fn may_differ_in(self, factor: u64, multiples: impl IntoIterator<Item = u64>) -> bool {
        let mut differences = multiples.into_iter().map(|multiple| multiple.wrapping_mul(factor));
        differences.any(|by| self.may_differ_by(by) || self.may_differ_by(by.wrapping_neg()))
    }
}

/// Returns the arguments of a call beside size and addresses.
fn others(call: Call) -> &'static str {
    match call {
        Call::Broadcast => ", root",
        Call::Alltoalls => ", element or stride",
        Call::Reduce | Call::Reducescatter => ", element type or operator",
        _ => "",
    }
}

/// Returns what differs between two members that make the same call, as the end of `called it
/// with`: the argument if one alone explains the announcements of both, and otherwise all that it
/// may be. Of pairs that differ in several arguments one in a thousand is taken for another one.
pub fn differing(call: Call, theirs: u32, mine: u32) -> String {
    let hashes = Hashes { theirs, mine };
    let near_or_far = || (1..=NEAR).chain((1..=STEPS).map(|step| step * STEP));
    let is_reduction = matches!(call, Call::Reduce | Call::Reducescatter);
    let is_strided = call == Call::Alltoalls;
    let differ_in = |factor| hashes.may_differ_in(factor, near_or_far());
    let extra = |factor: u64| factor.wrapping_mul(EXTRA);
    // Operators, and element types in the upper half.
    let both = (1..=TYPES).flat_map(|ty| (1..=OPERATORS).flat_map(move |op| [(ty << 32) + op, (ty << 32) - op]));
    // First what has the fewest values.
    let found = if call == Call::Broadcast && hashes.may_differ_in(EXTRA, 1..1 << abi::NAMED_PE_BITS) {
        "root"
    } else if is_reduction && hashes.may_differ_in(EXTRA, 1..=OPERATORS) {
        "operator"
    } else if is_reduction && hashes.may_differ_in(EXTRA, (1..=TYPES).map(|ty| ty << 32)) {
        "element type"
    } else if is_reduction && hashes.may_differ_in(EXTRA, both) {
        "element type and operator"
    } else if is_strided && hashes.may_differ_in(extra(ELEMENT), 1..16) {
        "element"
    } else if hashes.may_differ_in(HOW, 1..HOWS) {
        "scope, algorithm or number of blocks"
    } else if differ_in(SIZE) {
        "size"
    } else if differ_in(DST) {
        "dst"
    } else if differ_in(SRC) {
        "src"
    } else if is_strided && differ_in(extra(DST_STRIDE)) {
        "stride of dst"
    } else if is_strided && differ_in(EXTRA) {
        "stride of src"
    } else {
        return format!("another size, dst, src{} or scope", others(call));
    };
    format!("another {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a member announces, less its call.
    fn hash([size, dst, src, extra, how]: [u64; 5]) -> u32 {
        let sum = [(size, SIZE), (dst, DST), (src, SRC), (extra, EXTRA), (how, HOW)]
            .into_iter()
            .fold(0_u64, |sum, (value, factor)| sum.wrapping_add(value.wrapping_mul(factor)));
        (sum >> LOW_BITS) as u32
    }

    fn strided(element: u64, dst: u64, src: u64) -> u64 {
        element.wrapping_mul(SIZE).wrapping_add(dst).wrapping_mul(DST).wrapping_add(src)
    }

    #[test]
    fn an_argument_that_alone_differs_is_named() {
        let float_sum = 8 << 32 | 5_u64;
        let mine = [48, 8192, 1 << 20, 2, 1];
        for (call, change, expected) in [
            (Call::Broadcast, [0, 0, 0, -2_i64, 0], "another root"),
            (Call::Broadcast, [0, 0, 0, 4, 0], "another root"),
            (Call::Fcollect, [-1, 0, 0, 0, 0], "another size"),
            (Call::Alltoall, [4_000_000 / 512 * 512, 0, 0, 0, 0], "another size"),
            (Call::Broadcast, [0, 64, 0, 0, 0], "another dst"),
            (Call::Broadcast, [0, 1 << 20, 0, 0, 0], "another dst"),
            (Call::Fcollect, [0, 0, -8, 0, 0], "another src"),
            (Call::Fcollect, [0, 0, 0, 0, 1], "another scope, algorithm or number of blocks"),
            (Call::Reduce, [0, 0, 0, -1, 0], "another operator"),
            (Call::Reducescatter, [0, 0, 0, 1 << 32, 0], "another element type"),
            (Call::Reduce, [0, 0, 0, (1 << 32) - 3, 0], "another element type and operator"),
            (Call::Fcollect, [8, 64, 0, 0, 0], "another size, dst, src or scope"),
            (Call::Reduce, [8, 64, 0, 0, 0], "another size, dst, src, element type or operator or scope"),
        ] {
            let mine = if matches!(call, Call::Reduce | Call::Reducescatter) {
                [mine[0], mine[1], mine[2], float_sum, mine[4]]
            } else {
                mine
            };
            let theirs: [u64; 5] = std::array::from_fn(|at| mine[at].wrapping_add_signed(change[at]));
            assert_eq!(differing(call, hash(theirs), hash(mine)), expected, "{call:?} {change:?}");
            let other_way = differing(call, hash(mine), hash(theirs));
            assert_eq!(other_way, expected, "{call:?} {change:?}, seen by the other");
        }
        for (theirs, expected) in [
            (strided(4, 8, 8), "another element"),
            (strided(8, 16, 8), "another stride of dst"),
            (strided(8, 8, 24), "another stride of src"),
        ] {
            let mine = hash([48, 0, 1 << 20, strided(8, 8, 8), 1]);
            assert_eq!(differing(Call::Alltoalls, hash([48, 0, 1 << 20, theirs, 1]), mine), expected);
        }
    }

    /// Few other differences are taken for one of a single argument.
    #[test]
    fn several_arguments_that_differ_are_rarely_taken_for_one() {
        let mut seed = 7_u64;
        let mut next = || {
            seed = oxshmem_system::mixing::mix(seed);
            seed
        };
        let taken = (0..2000).filter(|_| {
            let [mine, theirs] = [0, 1].map(|_| std::array::from_fn(|_| next() >> 34));
            !differing(Call::Reduce, hash(theirs), hash(mine)).contains("dst, src")
        });
        assert!(taken.count() <= 20);
    }
}
