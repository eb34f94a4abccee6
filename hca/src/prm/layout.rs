//! Bit fields of command structures: big-endian, bit 0 is the most significant bit of the first
//! byte, as `mlx5_ifc.h` counts.

use oxshmem_system::words::low8;

/// A value that fits a field of at most 64 bits.
pub(crate) trait Bits: Copy + Default {
    fn from_bits(bits: u64) -> Self;
    fn to_bits(self) -> u64;
}

impl Bits for bool {
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }

    fn to_bits(self) -> u64 {
        u64::from(self)
    }
}

macro_rules! bits_for {
    ($($ty:ty),*) => {$(
        impl Bits for $ty {
            #[allow(clippy::cast_possible_truncation, reason = "no field is wider than its type")]
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }

            fn to_bits(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}
bits_for!(u8, u16, u32, u64);

/// Reads `width` bits from bit `at`. Bits beyond the end of `bytes` read as 0.
pub(crate) fn get(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut value = 0;
    let mut bit = at;
    while bit < at + width {
        let take = (8 - bit % 8).min(at + width - bit);
        let byte = u64::from(bytes.get(bit / 8).copied().unwrap_or(0));
        value = value << take | (byte >> (8 - bit % 8 - take)) & ((1 << take) - 1);
        bit += take;
    }
    value
}

/// Writes the low `width` bits of `value` at bit `at`.
pub(crate) fn set(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    let mut bit = at;
    let mut left = width;
    while left > 0 {
        let take = (8 - bit % 8).min(left);
        let shift = 8 - bit % 8 - take;
        let mask = u8::MAX >> (8 - take);
        let piece = low8(value >> (left - take)) & mask;
        let byte = &mut bytes[bit / 8];
        *byte = *byte & !(mask << shift) | piece << shift;
        bit += take;
        left -= take;
    }
}

/// A structure made of bit fields.
pub(crate) trait Layout: Default {
    /// Decodes, with the structure's first bit at bit `base`.
    fn read(bytes: &[u8], base: usize) -> Self;
    /// Encodes.
    fn write(&self, bytes: &mut [u8], base: usize);
    /// Sets the bits that belong to a field.
    fn cover(mask: &mut [u8], base: usize);
    /// Appends name and value of each field that is not 0; nested fields as `structure.field`.
    fn show(&self, prefix: &str, out: &mut Vec<(String, u64)>);
    /// Name, bit offset and width of each field; nested structures have width 0.
    #[cfg(test)]
    const FIELDS: &'static [(&'static str, usize, usize)];
}

/// Returns the first bit of `bytes` that is set and belongs to no field of `L` (nor to the command
/// header's first 64 bits).
pub(crate) fn reserved_bit<L: Layout>(bytes: &[u8]) -> Option<usize> {
    let mut mask = vec![0u8; bytes.len()];
    L::cover(&mut mask, 0);
    bytes.iter().zip(&mask).enumerate().find_map(|(at, (byte, mask))| {
        let stray = byte & !mask;
        (stray != 0).then(|| at * 8 + stray.leading_zeros() as usize)
    })
}

/// Defines a structure of bit fields: `name: type = offset, width`, and nested structures: marked
/// with `@`.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty = $at:literal, $width:literal;)*
            $(@ $(#[$nested_meta:meta])* $nested:ident: $nested_ty:ty = $nested_at:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
            $($(#[$nested_meta])* pub $nested: $nested_ty,)*
        }

        #[allow(unused_variables)] // a structure may have no fields
        impl $crate::prm::layout::Layout for $name {
            fn read(bytes: &[u8], base: usize) -> Self {
                Self {
                    $($field: $crate::prm::layout::Bits::from_bits($crate::prm::layout::get(bytes, base + $at, $width)),)*
                    $($nested: $crate::prm::layout::Layout::read(bytes, base + $nested_at),)*
                }
            }

            fn write(&self, bytes: &mut [u8], base: usize) {
                $($crate::prm::layout::set(
                    bytes, base + $at, $width, $crate::prm::layout::Bits::to_bits(self.$field));)*
                $(self.$nested.write(bytes, base + $nested_at);)*
            }

            fn show(&self, prefix: &str, out: &mut Vec<(String, u64)>) {
                $(match $crate::prm::layout::Bits::to_bits(self.$field) {
                    0 => {}
                    value => out.push((format!("{prefix}{}", stringify!($field)), value)),
                })*
                $($crate::prm::layout::Layout::show(
                    &self.$nested, &format!("{prefix}{}.", stringify!($nested)), out);)*
            }

            #[cfg(test)]
            const FIELDS: &'static [(&'static str, usize, usize)] = &[
                $((stringify!($field), $at, $width),)*
                $((stringify!($nested), $nested_at, 0),)*
            ];

            fn cover(mask: &mut [u8], base: usize) {
                $($crate::prm::layout::set(mask, base + $at, $width, u64::MAX);)*
                $(<$nested_ty as $crate::prm::layout::Layout>::cover(mask, base + $nested_at);)*
            }
        }
    };
}
pub(crate) use layout;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn set_then_get(at in 0usize..100, width in 1usize..=64, value in any::<u64>(), fill in any::<u8>()) {
            let mut bytes = [fill; 24];
            let value = if width == 64 { value } else { value & ((1 << width) - 1) };
            set(&mut bytes, at, width, value);
            prop_assert_eq!(get(&bytes, at, width), value);
            // Nothing else changed.
            for bit in (0..192).filter(|bit| !(at..at + width).contains(bit)) {
                prop_assert_eq!(get(&bytes, bit, 1), u64::from(fill >> (7 - bit % 8) & 1));
            }
        }
    }

    #[test]
    fn bit_zero_is_the_most_significant() {
        let mut bytes = [0u8; 4];
        set(&mut bytes, 0, 1, 1);
        set(&mut bytes, 8, 24, 0xabcdef);
        assert_eq!(bytes, [0x80, 0xab, 0xcd, 0xef]);
    }
}
