//! Ids by which the members of a team find each other.

use std::fmt;
use std::str::FromStr;

use crate::Result;
use crate::bootstrap::JobId;

/// Names a team that is about to be created from any PEs; see [`Pe::team_from_unique_id`](crate::Pe::team_from_unique_id). It is 16 bytes, or
/// as text 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TeamUniqueId([u8; 16]);

impl TeamUniqueId {
    pub(super) fn random() -> Result<Self> {
        Ok(Self(JobId::random()?.to_bytes()))
    }

    /// The id that [`as_bytes`](Self::as_bytes) wrote.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for TeamUniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TeamUniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TeamUniqueId({self})")
    }
}

impl FromStr for TeamUniqueId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(|id: JobId| Self(id.to_bytes()))
    }
}
