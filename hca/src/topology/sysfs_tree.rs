//! Recorded sysfs trees, for tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::machine::Topology;

/// Machines that are described, each with a short name.
pub(super) const FIXTURES: [(&str, &str); 7] = [
    ("dgx-a100", include_str!("fixtures/dgx-a100.txt")),
    ("dgx-h100", include_str!("fixtures/dgx-h100.txt")),
    ("hgx-4-cards", include_str!("fixtures/hgx-4-cards.txt")),
    ("h20-two-sockets", include_str!("fixtures/h20-two-sockets.txt")),
    ("single-card", include_str!("fixtures/single-card.txt")),
    ("single-socket", include_str!("fixtures/single-socket.txt")),
    ("vm-flat", include_str!("fixtures/vm-flat.txt")),
];

/// A sysfs tree made of a description, whose form [`Topology::parse`] documents.
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
                "pci" | "gpu" => {
                    let folder = root.join("devices").join(words[2]);
                    fs::create_dir_all(&folder).unwrap();
                    fs::write(folder.join("numa_node"), format!("{}\n", words[1])).unwrap();
                    let (vendor, class) =
                        if words[0] == "gpu" { ("0x10de", "0x030200") } else { ("0x15b3", "0x020700") };
                    fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
                    fs::write(folder.join("class"), format!("{class}\n")).unwrap();
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
                        let _ = symlink(root.join("bus/pci/drivers").join(words[3]), folder.join("../../driver"));
                    }
                    fs::write(folder.join("node_type"), format!("{}\n", words[4].replace(':', ": "))).unwrap();
                    for port in words[5..].chunks(3) {
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
