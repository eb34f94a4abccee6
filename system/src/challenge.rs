//! Proofs that both ends of a connection know a secret, which is never sent.
//!
//! Each end draws a [`nonce`] and sends it. The end that connected proves first, so a stranger
//! learns nothing from the other but a random number; then the other proves. A proof is an
//! HMAC-SHA-256 over both nonces, the [`Role`] of the end that proves, and a context that both ends
//! know: what the connection is for, and which ends it has. A recorded proof fits no other
//! connection, as the other end's nonce differs, and a proof that is sent back fits no other role.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{Error, Result};

/// Bytes of a nonce and of a proof.
pub const BYTES: usize = 32;

/// The end of the connection that proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The end that connected.
    Connecting,
    /// The end that accepted the connection.
    Accepting,
}

/// Both nonces of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonces {
    /// Drawn by the end that connected.
    pub connecting: [u8; BYTES],
    /// Drawn by the end that accepted the connection.
    pub accepting: [u8; BYTES],
}

/// Returns random bytes that no other connection has.
///
/// # Errors
/// Fails like [`random`].
pub fn nonce() -> Result<[u8; BYTES]> {
    random()
}

/// Returns random bytes, fit for a secret.
///
/// # Errors
/// The kernel has no randomness to give.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
        .map_err(|error| Error::os("read /dev/urandom", error))?;
    Ok(bytes)
}

/// Returns what follows from `secret` for a purpose, without telling the secret.
#[must_use]
pub fn derive<const N: usize>(secret: &[u8], purpose: &[u8]) -> [u8; N] {
    const { assert!(N <= BYTES) };
    let none = Nonces { connecting: [0; BYTES], accepting: [0; BYTES] };
    let proof = prove(secret, Role::Accepting, &none, purpose);
    std::array::from_fn(|at| proof[at])
}

/// Returns the proof that the end with this role knows `secret`.
///
/// ```
/// use oxshmem_system::challenge::{Nonces, Role, nonce, prove, verify};
///
/// let nonces = Nonces { connecting: nonce()?, accepting: nonce()? };
/// let proof = prove(b"secret", Role::Connecting, &nonces, b"example 1");
/// assert!(verify(b"secret", Role::Connecting, &nonces, b"example 1", &proof));
/// assert!(!verify(b"another", Role::Connecting, &nonces, b"example 1", &proof));
/// # Ok::<(), oxshmem_system::Error>(())
/// ```
#[must_use]
pub fn prove(secret: &[u8], role: Role, nonces: &Nonces, context: &[u8]) -> [u8; BYTES] {
    mac(secret, role, nonces, context).map_or([0; BYTES], |mac| mac.finalize().into_bytes().into())
}

/// Returns whether `proof` is the one of the end with this role, in a time that does not depend on
/// how much of it is right.
#[must_use]
pub fn verify(secret: &[u8], role: Role, nonces: &Nonces, context: &[u8], proof: &[u8]) -> bool {
    mac(secret, role, nonces, context).is_some_and(|mac| mac.verify_slice(proof).is_ok())
}

/// Returns the code over all of it. `None` never comes: HMAC takes keys of any length.
fn mac(secret: &[u8], role: Role, nonces: &Nonces, context: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret).ok()?;
    let role: &[u8] = match role {
        Role::Connecting => b"oxshmem connecting",
        Role::Accepting => b"oxshmem accepting ",
    };
    // All parts but the last have one length, so no two inputs are the same bytes.
    [role, &nonces.connecting, &nonces.accepting, context].iter().for_each(|part| mac.update(part));
    Some(mac)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_fits_one_secret_role_connection_and_context() {
        let nonces = Nonces { connecting: nonce().unwrap(), accepting: nonce().unwrap() };
        let proof = prove(b"s", Role::Connecting, &nonces, b"c");
        assert!(verify(b"s", Role::Connecting, &nonces, b"c", &proof));
        assert!(!verify(b"t", Role::Connecting, &nonces, b"c", &proof));
        assert!(!verify(b"s", Role::Accepting, &nonces, b"c", &proof));
        assert!(!verify(b"s", Role::Connecting, &nonces, b"d", &proof));
        for other in
            [Nonces { accepting: nonce().unwrap(), ..nonces }, Nonces { connecting: nonce().unwrap(), ..nonces }]
        {
            assert!(!verify(b"s", Role::Connecting, &other, b"c", &proof), "a replayed proof");
        }
        let swapped = Nonces { connecting: nonces.accepting, accepting: nonces.connecting };
        assert!(!verify(b"s", Role::Connecting, &swapped, b"c", &proof));
        for cut in 0..BYTES {
            assert!(!verify(b"s", Role::Connecting, &nonces, b"c", &proof[..cut]));
        }
        for bit in 0..8 * BYTES {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(b"s", Role::Connecting, &nonces, b"c", &wrong), "bit {bit}");
        }
    }

    #[test]
    fn the_code_is_hmac_sha_256() {
        // Computed by Python's hmac module.
        let nonces = Nonces { connecting: [1; BYTES], accepting: [2; BYTES] };
        let hex: String = prove(b"key", Role::Accepting, &nonces, b"ctx").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "127cb15238148ede6399964afd9d532d810c77cd5bc6b76325fa3da5c06eeee2");
    }
}
