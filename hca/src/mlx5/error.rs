//! What can go wrong with a ConnectX card. Each error says in one line what it is and what to do
//! about it.

use std::io;

use crate::prm::CommandStatus;

/// An error of the provider for ConnectX cards.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mlx5Error {
    /// No library.
    #[error(
        "the driver library libmlx5.so.1 cannot be loaded ({reason}); install rdma-core's (Debian and Ubuntu: ibverbs-providers), or use the \
         software HCA (OXSHMEM_HCA=soft)"
    )]
    NoLibrary {
        /// What the loader says.
        reason: String,
    },
    /// A library without a function that is needed.
    #[error(
        "libmlx5.so.1 has no {function}: it is too old; install rdma-core 36 or newer, or use OXSHMEM_HCA=verbs, which needs none of it"
    )]
    OldLibrary {
        /// The function.
        function: &'static str,
    },
    /// A device of another driver.
    #[error(
        "{device} is not a ConnectX card that libmlx5 drives; use OXSHMEM_HCA=verbs:{device}, or name another device in OXSHMEM_HCA=mlx5:DEVICE"
    )]
    Foreign {
        /// The device.
        device: String,
    },
    /// No device of this driver.
    #[error(
        "none of the RDMA devices ({present}) is a ConnectX card that libmlx5 drives; use OXSHMEM_HCA=verbs or OXSHMEM_HCA=soft"
    )]
    NoCard {
        /// Names of the devices.
        present: String,
    },
    /// No right to give commands.
    #[error(
        "{device} does not give this user a DevX context: {source}; it needs Linux 5.1 or newer with mlx5_ib, and firmware that allows user contexts \
         (mlxconfig UCTX_EN=1); OXSHMEM_HCA=verbs:{device} needs none of it"
    )]
    NoDevx {
        /// The device.
        device: String,
        /// The cause.
        source: io::Error,
    },
    /// Memory that can be registered in no way.
    #[error(
        "{bytes} bytes of {kind} memory cannot be registered with {device}: {reasons}; for GPU memory by dma-buf Linux 5.12 (queues: 6.1), \
         rdma-core 43 and the open GPU kernel modules are needed, or else the module nvidia_peermem{hint}"
    )]
    Registration {
        /// The device.
        device: String,
        /// `device` or `host`.
        kind: &'static str,
        /// What was to be registered.
        bytes: usize,
        /// Each way and why it failed.
        reasons: String,
        /// What else the kernel may lack; begins with a separator.
        hint: &'static str,
    },
    /// No doorbell register.
    #[error(
        "{device} has no page of doorbell registers to give: {reasons}; other processes may have taken them all, or lower OXSHMEM_QPS_PER_PEER"
    )]
    NoUar {
        /// The device.
        device: String,
        /// Each way and why it failed.
        reasons: String,
    },
    /// A peer whose hardware address is not found out.
    #[error(
        "{device} port {port} does not reach {gid}: {source}; check the route, and whether its address answers (`ip neigh`); OXSHMEM_IB_GID_INDEX \
         chooses the address that this end uses"
    )]
    Unreachable {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The peer.
        gid: crate::port::Gid,
        /// The cause.
        source: io::Error,
    },
    /// A call failed, and not because the firmware refused a command.
    #[error("{call} on {device} failed: {source}{detail}")]
    Call {
        /// The function.
        call: &'static str,
        /// The device.
        device: String,
        /// The cause.
        source: io::Error,
        /// What it was called with, if that says something; begins with a separator.
        detail: String,
    },
}

impl From<Mlx5Error> for crate::error::Error {
    fn from(error: Mlx5Error) -> Self {
        Self::provider(error)
    }
}

/// Returns what to do about a command that firmware refuses with this status.
pub(super) const fn remedy(status: CommandStatus) -> &'static str {
    match status {
        CommandStatus::NoResources | CommandStatus::Limit => {
            "the card has no more of these: lower OXSHMEM_QPS_PER_PEER or OXSHMEM_QP_DEPTH, or end other programs that use the card"
        }
        CommandStatus::InternalError | CommandStatus::BadSysState => {
            "the firmware failed: the kernel's log (dmesg) says more; reset the card, or update its firmware"
        }
        CommandStatus::BadOp => {
            "the firmware does not know this command: update it, or use OXSHMEM_HCA=verbs, which needs no DevX commands"
        }
        _ => {
            "the firmware does not take it so: update it (and report this line, whose syndrome says why to NVIDIA), or use OXSHMEM_HCA=verbs, \
             which needs no DevX commands"
        }
    }
}
