//! Values that have to fit together.

use oxshmem_hca::topology::DeviceChoice;

use super::choices::{Doorbell, DoorbellRecord, Hca, Network, Transport};
use super::error::ConfigError;
use super::table::{Config, VARIABLES};
use super::value::Choice;

impl Config {
    /// Refuses values that are outside their limits or contradict each other.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        for variable in VARIABLES {
            if !(variable.admit)(self, variable.limits) {
                return Err(ConfigError::OutOfRange {
                    name: variable.name,
                    value: (variable.show)(self),
                    origin: (variable.origin)(self),
                    form: variable.form(),
                });
            }
        }
        if self.heap_chunk() > self.heap_max() {
            return Err(ConfigError::Contradiction {
                first: format!("OXSHMEM_HEAP_CHUNK={}", self.heap_chunk()),
                second: format!("OXSHMEM_HEAP_MAX={}", self.heap_max()),
                rule: "a chunk is at most the whole heap",
            });
        }
        if self.network() != Network::Auto && self.transport() != Transport::Auto {
            return Err(ConfigError::Contradiction {
                first: format!("OXSHMEM_NETWORK={}", self.network()),
                second: format!("OXSHMEM_TRANSPORT={}", self.transport()),
                rule: "the transport leaves no choice of a network; unset one of them",
            });
        }
        self.check_cards()?;
        let faulty = !self.soft_faults().is_empty();
        if let Hca::Mlx5 { .. } | Hca::Verbs { .. } = self.hca()
            && (faulty || self.soft_trace())
        {
            let (name, value) = match faulty {
                true => ("OXSHMEM_SOFT_FAULTS", self.soft_faults().as_str()),
                false => ("OXSHMEM_SOFT_TRACE", "1"),
            };
            return Err(ConfigError::Contradiction {
                first: format!("{name}={value}"),
                second: format!("OXSHMEM_HCA={}", self.hca()),
                rule: "only the software HCA does that; unset it, or use OXSHMEM_HCA=soft",
            });
        }
        if self.ibgda_doorbell() != Doorbell::Auto && matches!(self.hca(), Hca::Soft | Hca::Null | Hca::Verbs { .. }) {
            return Err(ConfigError::Contradiction {
                first: format!("OXSHMEM_IBGDA_DOORBELL={}", self.ibgda_doorbell()),
                second: format!("OXSHMEM_HCA={}", self.hca()),
                rule: "it says how a ConnectX card is rung; unset it, or use OXSHMEM_HCA=mlx5",
            });
        }
        if self.ibgda_doorbell_record() == DoorbellRecord::Never && matches!(self.hca(), Hca::Verbs { .. }) {
            return Err(ConfigError::Contradiction {
                first: format!("OXSHMEM_IBGDA_DOORBELL_RECORD={}", self.ibgda_doorbell_record()),
                second: format!("OXSHMEM_HCA={}", self.hca()),
                rule: "it says how device code posts; unset it, or use OXSHMEM_HCA=mlx5",
            });
        }
        let launcher = [
            ("OXSHMEM_RENDEZVOUS", self.rendezvous().is_some()),
            ("OXSHMEM_RANK", self.rank().is_some()),
            ("OXSHMEM_NPES", self.npes().is_some()),
            ("OXSHMEM_JOB", self.job().is_some()),
        ];
        if let Some((present, _)) = launcher.iter().find(|(_, set)| *set)
            && let Some((missing, _)) = launcher.iter().find(|(_, set)| !*set)
        {
            return Err(ConfigError::Incomplete { present, missing });
        }
        if let (Some(rank), Some(npes)) = (self.rank(), self.npes())
            && rank >= npes
        {
            return Err(ConfigError::Contradiction {
                first: format!("OXSHMEM_RANK={rank}"),
                second: format!("OXSHMEM_NPES={npes}"),
                rule: "ranks count from 0 and stay below the number of PEs",
            });
        }
        Ok(())
    }

    /// Refuses values for RDMA devices that contradict each other.
    fn check_cards(&self) -> Result<(), ConfigError> {
        let unused = match self.hca() {
            Hca::Soft | Hca::Null => Some("the software HCA has no devices to choose from"),
            Hca::Mlx5 { card: Some(_) } | Hca::Verbs { card: Some(_) } => Some("name the device in one of them"),
            Hca::Auto | Hca::Mlx5 { card: None } | Hca::Verbs { card: None } => None,
        };
        let hca = || format!("OXSHMEM_HCA={}", self.hca());
        let devices = || format!("OXSHMEM_HCA_DEVICES={}", self.hca_devices());
        if let Some(rule) = unused.filter(|_| *self.hca_devices() != DeviceChoice::Any) {
            return Err(ConfigError::Contradiction { first: hca(), second: devices(), rule });
        }
        let qps = || format!("OXSHMEM_QPS_PER_PEER={}", self.qps_per_peer());
        let mapped = match self.hca_devices() {
            DeviceChoice::Mapping(items) => items.iter().map(|(_, cards)| cards.len() as u64).max(),
            DeviceChoice::Any | DeviceChoice::Only(_) | DeviceChoice::Except(_) => None,
        };
        if let Some(most) = mapped.filter(|most| *most > 1) {
            if matches!(self.hca(), Hca::Verbs { .. }) {
                let rule = "verbs drive one device per PE; name one for each, or use OXSHMEM_HCA=mlx5";
                return Err(ConfigError::Contradiction { first: devices(), second: hca(), rule });
            }
            if most > u64::from(self.qps_per_peer()) {
                let rule = "each device needs a QP to each peer; name fewer for each PE, or raise OXSHMEM_QPS_PER_PEER";
                return Err(ConfigError::Contradiction { first: devices(), second: qps(), rule });
            }
        }
        let Choice::Given(count) = self.hca_devices_per_pe() else { return Ok(()) };
        let contradicts = |second: String, rule| {
            let first = format!("OXSHMEM_HCA_DEVICES_PER_PE={count}");
            Err(ConfigError::Contradiction { first, second, rule })
        };
        if mapped.is_some() {
            return contradicts(devices(), "the mapping says how many devices each PE drives; unset one of them");
        }
        if count == 1 {
            return Ok(());
        }
        match self.hca() {
            Hca::Soft | Hca::Null => {
                return contradicts(hca(), "a PE drives one software HCA; unset it, or use OXSHMEM_HCA=mlx5");
            }
            Hca::Verbs { .. } => {
                return contradicts(hca(), "verbs drive one device per PE; unset it, or use OXSHMEM_HCA=mlx5");
            }
            Hca::Mlx5 { card: Some(_) } => {
                let rule = "a device that is named is the only one; unset it, or name several in OXSHMEM_HCA_DEVICES";
                return contradicts(hca(), rule);
            }
            Hca::Auto | Hca::Mlx5 { card: None } => {}
        }
        if count > self.qps_per_peer() {
            let rule = "each device needs a QP to each peer; lower it, or raise OXSHMEM_QPS_PER_PEER";
            return contradicts(qps(), rule);
        }
        Ok(())
    }
}
