//! Why no device can be given to a PE. Each error says in one line what it is and what to do about
//! it.

/// No device for a PE.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// sysfs cannot be read.
    #[error(
        "/sys/class/infiniband cannot be read ({reason}); mount sysfs, or name the device (OXSHMEM_HCA=verbs:DEVICE or mlx5:DEVICE)"
    )]
    Unreadable {
        /// The cause.
        reason: String,
    },
    /// The file that describes the machine is wrong.
    #[error(
        "OXSHMEM_TOPOLOGY={file}: {what}; docs/hardware.md has the form, and `oxshmem-info topology` writes this machine's"
    )]
    Description {
        /// The variable's value.
        file: String,
        /// What is wrong, and where.
        what: String,
    },
    /// The file that describes the machine does not have the GPU of a PE.
    #[error(
        "OXSHMEM_TOPOLOGY={file} does not describe the GPU of this PE ({place}); add `gpu NUMA-NODE PATH` with its path below /sys/devices"
    )]
    NotDescribed {
        /// The variable's value.
        file: String,
        /// The GPU.
        place: String,
    },
    /// The machine has none.
    #[error(
        "this machine has no RDMA device (none in /sys/class/infiniband, or in the file that OXSHMEM_TOPOLOGY names); load the card's driver, or use the software HCA (OXSHMEM_HCA=soft)"
    )]
    NoDevice,
    /// The machine has some, but none of the requested kind.
    #[error(
        "OXSHMEM_HCA=mlx5, but no RDMA device of this machine is a ConnectX or BlueField ({present}); use OXSHMEM_HCA=verbs"
    )]
    NoMlx5 {
        /// Names of the devices.
        present: String,
    },
    /// No device has a port that could be used.
    #[error(
        "no RDMA device has an active port for RC queue pairs: {devices}; check cables, the subnet manager on InfiniBand and `ip link` on \
         Ethernet"
    )]
    NoActivePort {
        /// Each device and port, and what is wrong with it.
        devices: String,
    },
    /// A name of the list that no device has.
    #[error("OXSHMEM_HCA_DEVICES={list}: there is no RDMA device {name}; this machine has {present}")]
    NoSuchDevice {
        /// The variable's value.
        list: String,
        /// The name.
        name: String,
        /// Names of the devices.
        present: String,
    },
    /// A port of the list that the device does not have.
    #[error("OXSHMEM_HCA_DEVICES={list}: {device} has no port {port}; its ports are {present}")]
    NoSuchPort {
        /// The variable's value.
        list: String,
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Numbers of its ports.
        present: String,
    },
    /// The list leaves nothing out of which to choose.
    #[error("OXSHMEM_HCA_DEVICES={list} leaves no RDMA device; this machine has {present}")]
    NoneLeft {
        /// The variable's value.
        list: String,
        /// Names of the devices.
        present: String,
    },
    /// Fewer devices than each PE is to drive.
    #[error(
        "OXSHMEM_HCA_DEVICES_PER_PE={wanted}, but {count} RDMA device{plural} of this machine can be used ({present}); lower it to {count}, or see \
         with oxshmem-info what keeps others from use", plural = if *count == 1 { "" } else { "s" }
    )]
    TooFewDevices {
        /// The variable's value.
        wanted: u32,
        /// How many there are.
        count: usize,
        /// Their names.
        present: String,
    },
    /// The mapping does not say what a PE uses.
    #[error("OXSHMEM_HCA_DEVICES={list} gives no device to PE {index} of the node ({place}); add {index}=DEVICE")]
    Unmapped {
        /// The variable's value.
        list: String,
        /// The PE, counted on its node.
        index: usize,
        /// Where it works.
        place: String,
    },
}

impl From<TopologyError> for crate::error::Error {
    fn from(error: TopologyError) -> Self {
        Self::provider(error)
    }
}
