//! The options that say where kernels run and how PEs reach each other: every program has them.

use std::ffi::OsString;

use oxshmem::config::{ConfigError, Device, Dumps, Hca, Transport};
use oxshmem::{Config, Path, Pe};

use crate::error::Error;

/// The HCA that completes everything and moves nothing.
pub(crate) const NULL: &str = "null";

/// Device, transport and HCA.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Connection {
    /// Where kernels run: auto, cpu or cuda.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Device>,
    /// How other PEs are reached: auto, p2p, ibgda or ibrc.
    #[arg(long, value_name = "TRANSPORT")]
    pub transport: Option<Transport>,
    /// What executes work requests: auto, soft, mlx5, verbs or verbs:DEVICE (with the CPU proxy),
    /// or null, which completes them and moves nothing (posting rates).
    #[arg(long, value_name = "HCA")]
    pub hca: Option<Hca>,
    /// QPs to each peer.
    #[arg(long, value_name = "N")]
    pub qps: Option<u32>,
}

impl Connection {
    /// Returns the configuration: what the command line says, else the environment `vars`, else the
    /// library's defaults.
    ///
    /// # Errors
    /// What the configuration refuses.
    pub fn config<K: Into<OsString>, V: Into<OsString>>(
        &self,
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Config, ConfigError> {
        let vars: Vec<(OsString, OsString)> =
            vars.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let chosen = vars.iter().any(|(name, _)| name == "OXSHMEM_DUMP");
        let mut builder = Config::builder().vars(vars);
        if !chosen {
            // The program that ends the job says why in one line.
            builder = builder.dump(Dumps { abort: false, ..Dumps::ALL });
        }
        if let Some(device) = self.device {
            builder = builder.device(device);
        }
        if let Some(transport) = self.transport {
            builder = builder.transport(transport);
        }
        if let Some(hca) = &self.hca {
            builder = builder.hca(hca.clone());
        }
        if let Some(qps) = self.qps {
            builder = builder.qps_per_peer(qps);
        }
        builder.build()
    }
}

/// Refuses the HCA that moves nothing, whether the command line or the environment names it; `why`
/// says what would not happen.
///
/// # Errors
/// It is the one.
pub fn refuse_null(config: &Config, why: &str) -> Result<(), Error> {
    match config.hca() {
        Hca::Null => Err(Error::Usage(format!(
            "--hca null, or OXSHMEM_HCA=null, moves nothing, so {why}; leave it out, or give another HCA"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a job in which no work request would go through the requested HCA.
///
/// # Errors
/// Another HCA is in use, or none.
pub fn require_hca(pe: &Pe, hca: Option<&Hca>) -> Result<(), Error> {
    let wanted = match hca {
        Some(Hca::Soft) => "soft",
        Some(Hca::Mlx5 { .. }) => "mlx5",
        Some(Hca::Verbs { .. }) => "verbs",
        Some(Hca::Null) => NULL,
        _ => return Ok(()),
    };
    if pe.hca_name() == Some(wanted) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "--hca {wanted}: no work request would go through it, the other PEs are reached by {}; add --transport ibgda",
        paths(pe)
    )))
}

/// Returns how this PE reaches the others: `p2p`, `ibgda` or `ibrc`, joined by `+` if it is not the
/// same for all; `none` if there are none.
pub fn paths(pe: &Pe) -> String {
    let mut names: Vec<&str> = Vec::new();
    for other in (0..pe.n_pes()).filter(|other| *other != pe.my_pe()) {
        let name = match pe.path(other) {
            Some(Path::LoadStore) => "p2p",
            Some(Path::Ibgda) => "ibgda",
            Some(Path::Ibrc) => "ibrc",
            _ => "none",
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() { "none".to_owned() } else { names.join("+") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_nothing_is_refused_wherever_it_comes_from() {
        let config = |hca: Option<Hca>, vars: &[(&str, &str)]| {
            let connection = Connection { device: None, transport: None, hca, qps: None };
            connection.config(vars.iter().copied()).unwrap()
        };
        for config in [config(Some(Hca::Null), &[]), config(None, &[("OXSHMEM_HCA", "null")])] {
            let error = refuse_null(&config, "nothing would end").unwrap_err().to_string();
            assert!(error.contains("moves nothing, so nothing would end"), "{error}");
        }
        refuse_null(&config(Some(Hca::Soft), &[("OXSHMEM_HCA", "null")]), "").unwrap();
    }
}
