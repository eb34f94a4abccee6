//! The description of the machine, which `OXSHMEM_TOPOLOGY` takes.

use std::process::ExitCode;

use oxshmem::config::Config;

use crate::doctor::Root;

/// Prints the description of the machine.
pub fn describe(config: &Config) -> ExitCode {
    let text =
        Root::new("/").machine(config).map(|machine| machine.describe()).and_then(|text| match text.is_empty() {
            true => Err("this machine has neither a GPU of NVIDIA nor an RDMA device".to_owned()),
            false => Ok(text),
        });
    match text {
        Ok(text) => ExitCode::from(u8::from(!crate::output::print(&text))),
        Err(error) => {
            eprintln!("oxshmem-info: {error}");
            ExitCode::FAILURE
        }
    }
}
