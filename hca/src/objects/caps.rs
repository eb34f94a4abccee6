//! The capabilities of an HCA.

use crate::error::Result;
use crate::prm::{Command, caps};
use crate::provider::Provider;

/// Read the general and the atomic capabilities.
pub fn query_caps(provider: &dyn Provider) -> Result<(caps::GeneralCaps, caps::AtomicCaps)> {
    let mut output = vec![0; caps::QueryHcaCap::OUT_LEN];
    provider.general_cmd(&caps::QueryHcaCap { op_mod: caps::GENERAL_CURRENT }.encode(), &mut output)?;
    let general = caps::QueryHcaCap::decode_output(&output).caps;
    provider.general_cmd(&caps::QueryHcaCap { op_mod: caps::ATOMIC_CURRENT }.encode(), &mut output)?;
    Ok((general, caps::AtomicCapsOut::decode(&output).caps))
}
