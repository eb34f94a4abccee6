//! Bonded ports (`mlx5_ifc_query_lag_*`, `mlx5_ifc_lagc_bits`).

use super::command::command;

command! {
    QueryLag, 16 => 16;
    /// QUERY_LAG.
    in QueryLag {}
    /// Its output.
    out QueryLagOut {
        /// Whether the ports are bonded, and how; 0: they are not.
        lag_state: u8 = 0x5d, 3;
    }
}
