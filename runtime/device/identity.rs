//! Which device a PE has, as PEs tell each other.

use std::fmt;

/// Which device it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceIdentity {
    /// What tells devices apart: the same for all PEs that use the device, though each may have
    /// another number for it.
    pub key: String,
    /// What people call it.
    pub name: String,
}

impl DeviceIdentity {
    /// Returns what [`told`](Self::told) reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { key, name } = self;
        if key == name { key.clone() } else { format!("{key}\n{name}") }.into_bytes()
    }

    /// Returns what another PE has told.
    pub fn told(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (key, name) = text.split_once('\n').unwrap_or((&text, &text));
        Self { key: key.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.key == self.name { Ok(()) } else { write!(f, ", UUID {}", self.key) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pes_read_what_the_others_have_told() {
        let gpu = DeviceIdentity { key: "00ff".into(), name: "GPU 1, NVIDIA H200".into() };
        assert_eq!(DeviceIdentity::told(&gpu.to_bytes()), gpu);
        assert_eq!(gpu.to_string(), "GPU 1, NVIDIA H200, UUID 00ff");
        let cpu = DeviceIdentity { key: "cpu".into(), name: "cpu".into() };
        assert_eq!((cpu.to_bytes(), cpu.to_string()), (b"cpu".to_vec(), "cpu".to_owned()));
        assert_eq!(DeviceIdentity::told(b"cpu"), cpu);
        let other = DeviceIdentity::told(b"\xff");
        assert_eq!(other.to_string(), "\u{fffd}");
    }
}
