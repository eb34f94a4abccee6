//! The calls that are compared, what each PE gives to them, and what it has afterwards.

use crate::collectives::Collective;

/// What buffers consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// `f32`.
    Float,
    /// `half::bf16`.
    Bfloat16,
}

impl Element {
    /// Returns the bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Float => 4,
            Self::Bfloat16 => 2,
        }
    }

    /// Appends `value` to `to`: a whole number up to 256, which both types have exactly.
    fn push(self, value: f32, to: &mut Vec<u8>) {
        match self {
            Self::Float => to.extend_from_slice(&value.to_ne_bytes()),
            // The upper half of a float.
            Self::Bfloat16 => to.extend_from_slice(&((value.to_bits() >> 16) as u16).to_ne_bytes()),
        }
    }
}

/// A call of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// In the table, in JSON, and in the lines to the programs.
    pub name: &'static str,
    /// The collective.
    pub collective: Collective,
    /// What buffers consist of.
    pub element: Element,
}

const fn call(name: &'static str, collective: Collective, element: Element) -> Call {
    Call { name, collective, element }
}

/// All calls, in the order of the table. Broadcasts are from PE 0, and reductions are sums.
pub const CALLS: [Call; 8] = [
    call("broadcast", Collective::Broadcast, Element::Float),
    call("fcollect", Collective::Fcollect, Element::Float),
    call("alltoall", Collective::Alltoall, Element::Float),
    call("reduce", Collective::Reduce, Element::Float),
    call("reduce_bf16", Collective::Reduce, Element::Bfloat16),
    call("reducescatter", Collective::Reducescatter, Element::Float),
    call("barrier", Collective::Barrier, Element::Float),
    call("sync", Collective::Sync, Element::Float),
];

/// PEs at most: the sum of as many numbers is exact in every type.
pub const MOST_PES: u32 = 8;

/// Returns element `index` of what PE `pe` gives: 0 to 31. `compare/collectives.cu` and
/// `compare/collectives.py` have the same.
pub fn value(pe: u64, index: u64) -> f32 {
    let mixed = (index as u32).wrapping_add((pe as u32).wrapping_mul(0x9e37_79b9)).wrapping_mul(0x9e37_79b1);
    (mixed >> 27) as f32
}

impl Call {
    /// Returns the call of that name.
    pub fn named(name: &str) -> Option<Self> {
        CALLS.into_iter().find(|call| call.name == name)
    }

    /// Returns the bytes of one part, so that all parts of `npes` PEs have `whole` bytes together:
    /// whole vectors of 16 bytes, or whole elements if there is less. A call that moves nothing has
    /// none.
    pub fn part(self, whole: u64, npes: u64) -> u64 {
        let parts = self.collective.whole_bytes(1, npes);
        if parts == 0 {
            return 0;
        }
        let part = whole / parts;
        let unit = if part >= 16 { 16 } else { 4 };
        (part / unit * unit).max(4)
    }

    /// Returns what PE `pe` gives from element `first` on, `count` elements.
    pub fn given(self, pe: u64, first: u64, count: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((count * self.element.bytes()) as usize);
        (first..first + count).for_each(|index| self.element.push(value(pe, index), &mut bytes));
        bytes
    }

    /// Returns what PE `me` of `npes` has after the call with parts of `part` bytes, from element
    /// `first` on, `count` elements.
    pub fn result(self, (me, npes): (u64, u64), part: u64, (first, count): (u64, u64)) -> Vec<u8> {
        let each = (part / self.element.bytes()).max(1);
        let sum = |index: u64| (0..npes).map(|pe| value(pe, index)).sum();
        let element = |index: u64| match self.collective {
            Collective::Collect | Collective::Fcollect => value(index / each, index % each),
            Collective::Alltoall | Collective::Alltoalls => value(index / each, me * each + index % each),
            Collective::Reduce => sum(index),
            Collective::Reducescatter => sum(me * each + index),
            Collective::Broadcast | Collective::Barrier | Collective::Sync => value(0, index),
        };
        let mut bytes = Vec::with_capacity((count * self.element.bytes()) as usize);
        (first..first + count).for_each(|index| self.element.push(element(index), &mut bytes));
        bytes
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_up_the_whole_buffer() {
        let parts = |name: &str, npes| [8, 32, 1 << 20].map(|whole| Call::named(name).unwrap().part(whole, npes));
        assert_eq!(parts("reduce", 2), [8, 32, 1 << 20]);
        assert_eq!(parts("alltoall", 2), [4, 16, 1 << 19]);
        // A part is never empty, and is one of whole vectors for any number of PEs.
        assert_eq!(parts("fcollect", 3), [4, 8, (1 << 20) / 3 / 16 * 16]);
        assert_eq!(parts("reducescatter", 8), [4, 4, 1 << 17]);
        assert_eq!(parts("barrier", 2), [0; 3]);
        assert_eq!(Call::named("nonsense"), None);
    }

    #[test]
    fn results_are_made_of_what_was_given() {
        let floats = |bytes: Vec<u8>| -> Vec<f32> {
            bytes.as_chunks::<4>().0.iter().map(|float| f32::from_ne_bytes(*float)).collect()
        };
        let result = |name: &str, me| floats(Call::named(name).unwrap().result((me, 2), 12, (0, 3)));
        let given = |pe, first| floats(CALLS[0].given(pe, first, 3));
        assert_eq!(result("broadcast", 1), given(0, 0));
        assert_eq!(result("fcollect", 1), given(0, 0));
        assert_eq!(result("alltoall", 1), given(0, 3));
        let sums = |first| -> Vec<f32> { given(0, first).iter().zip(given(1, first)).map(|(a, b)| a + b).collect() };
        assert_eq!(result("reduce", 0), sums(0));
        assert_eq!(result("reducescatter", 1), sums(3));
        assert_eq!(floats(CALLS[1].result((0, 2), 12, (2, 2))), [value(0, 2), value(1, 0)]);
    }

    #[test]
    fn sums_of_all_pes_are_exact_and_values_differ() {
        for index in 0..1000 {
            let sum: f32 = (0..u64::from(MOST_PES)).map(|pe| value(pe, index)).sum();
            assert!(sum <= 256.0 && sum.to_bits() & 0xffff == 0, "{sum}");
        }
        let distinct =
            |pe| (0..100).map(|index| value(pe, index) as u32).collect::<std::collections::HashSet<_>>().len();
        assert!(distinct(0) > 20 && CALLS[0].given(0, 0, 64) != CALLS[0].given(1, 0, 64));
        assert_eq!(CALLS[4].given(0, 0, 10).len(), 20);
    }
}
