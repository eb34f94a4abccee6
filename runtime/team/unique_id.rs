//! Ids by which the members of a team find each other.

use std::fmt;
use std::str::FromStr;

use crate::Result;
use crate::bootstrap::JobId;

/// Names a team that is about to be created from any PEs; see
/// [`Team::from_unique_id`](crate::Team::from_unique_id). It is 16 bytes, or as text 32 hexadecimal
/// digits. Plain data: `Copy`, `Send` and `Sync`.
///
/// ```
/// # fn main() -> Result<(), String> {
/// let id: oxshmem::TeamUniqueId = "00112233445566778899aabbccddeeff".parse()?;
/// assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TeamUniqueId([u8; 16]);

impl TeamUniqueId {
    /// Creates an id. One PE of the future team does, and passes it to the others, by whatever
    /// means the program has.
    ///
    /// # Errors
    /// The system has no randomness to give.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// assert_ne!(oxshmem::TeamUniqueId::create()?, oxshmem::TeamUniqueId::create()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn create() -> Result<Self> {
        Ok(Self(JobId::random()?.to_bytes()))
    }

    /// Returns the id that [`as_bytes`](Self::as_bytes) wrote.
    ///
    /// ```
    /// assert_eq!(oxshmem::TeamUniqueId::from_bytes([7; 16]).as_bytes(), &[7; 16]);
    /// ```
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the id's bytes.
    ///
    /// ```
    /// assert_eq!(oxshmem::TeamUniqueId::from_bytes([0; 16]).as_bytes().len(), 16);
    /// ```
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
