//! How the commands of a file are declared.

/// Defines a command: its input structure with opcode and length, and its output structure with
/// length.
macro_rules! command {
    (
        $(#[$meta:meta])*
        $opcode:ident, $in_len:expr => $out_len:expr;
        $(#[$in_meta:meta])* in $input:ident { $($in_body:tt)* }
        $(#[$out_meta:meta])* out $output:ident { $($out_body:tt)* }
    ) => {
        $crate::prm::layout::layout! { $(#[$in_meta])* pub struct $input { $($in_body)* } }
        $crate::prm::layout::layout! { $(#[$out_meta])* pub struct $output { $($out_body)* } }

        impl $crate::prm::Command for $input {
            const OPCODE: $crate::prm::Opcode = $crate::prm::Opcode::$opcode;
            const IN_LEN: usize = $in_len;
            const OUT_LEN: usize = $out_len;
            type Output = $output;
        }
    };
}
pub(crate) use command;
