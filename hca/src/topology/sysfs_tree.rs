//! Recorded sysfs trees, for tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::machine::Topology;

/// A sysfs tree made of a description: a line for each PCI device (`pci NODE PATH`) and for each
/// RDMA device (`rdma NAME ADDRESS NODE-TYPE` and then `NUMBER STATE LINK-LAYER` for each port; the
/// address is `-` for a device that is not on PCI).
pub(super) struct Tree(PathBuf);

impl Tree {
    pub(super) fn new(name: &str, description: &str) -> Self {
        let root = std::env::temp_dir().join(format!("oxshmem-topology-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in ["class/infiniband", "bus/pci/devices", "devices/virtual/infiniband"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for line in description.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[0] {
                "pci" => {
                    let folder = root.join("devices").join(words[2]);
                    fs::create_dir_all(&folder).unwrap();
                    fs::write(folder.join("numa_node"), format!("{}\n", words[1])).unwrap();
                    let address = folder.file_name().unwrap();
                    symlink(&folder, root.join("bus/pci/devices").join(address)).unwrap();
                }
                "rdma" => {
                    let folder = match words[2] {
                        "-" => root.join("devices/virtual/infiniband").join(words[1]),
                        address => {
                            let device = fs::canonicalize(root.join("bus/pci/devices").join(address)).unwrap();
                            device.join("infiniband").join(words[1])
                        }
                    };
                    fs::create_dir_all(&folder).unwrap();
                    if words[2] != "-" {
                        symlink("../..", folder.join("device")).unwrap();
                        let driver = words[1].split('_').next().unwrap().to_owned() + "_core";
                        let _ = symlink(root.join("bus/pci/drivers").join(driver), folder.join("../../driver"));
                    }
                    fs::write(folder.join("node_type"), format!("{}\n", words[3].replace(':', ": "))).unwrap();
                    for port in words[4..].chunks(3) {
                        let ports = folder.join("ports").join(port[0]);
                        fs::create_dir_all(&ports).unwrap();
                        fs::write(ports.join("state"), format!("{}\n", port[1].replace(':', ": "))).unwrap();
                        fs::write(ports.join("link_layer"), format!("{}\n", port[2])).unwrap();
                    }
                    symlink(&folder, root.join("class/infiniband").join(words[1])).unwrap();
                }
                other => panic!("{other}?"),
            }
        }
        Self(root)
    }

    pub(super) fn topology(&self) -> Topology {
        Topology::read(&self.0).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
