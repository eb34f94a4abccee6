//! What PEs tell each other to connect queue pairs: the addresses of the ports to all, once for
//! each card, and to each PE the numbers of the queue pairs that lead to it.

use oxshmem_hca::objects::QpAddress;

use super::error::TransportError;
use super::rails::Rails;
use crate::Result;
use crate::bootstrap::Bootstrap;

/// Bytes of a queue pair's number where PEs tell it to each other.
const QPN_BYTES: usize = 3;

/// Exchanges the addresses of ports, by card, with 0 in the place of QP numbers: 34 bytes for each
/// card of every PE. Returns them by PE. Collective.
///
/// # Errors
/// The exchange fails, or a PE has another number of cards than it is to have.
pub(super) fn exchange_ports(bootstrap: &Bootstrap, rails: &Rails, ports: &[QpAddress]) -> Result<Vec<Vec<QpAddress>>> {
    let mine: Vec<u8> = ports.iter().flat_map(QpAddress::to_bytes).collect();
    let told = bootstrap.allgather("addresses of ports", &mine)?;
    let read = |(pe, bytes): (usize, &Vec<u8>)| {
        let theirs = bytes.chunks(QpAddress::BYTES).map(QpAddress::from_bytes).collect::<Result<Vec<_>, _>>()?;
        let expected = rails.cards_of(pe).unwrap_or(ports.len());
        if theirs.len() == expected { Ok(theirs) } else { Err(TransportError::Address { pe }.into()) }
    };
    told.iter().enumerate().map(read).collect()
}

/// Returns how many bytes a PE tells a peer of each column: the number of the queue pair that it
/// sends by, and, where PEs push, that of the one that it receives by alone, or 0.
pub(super) fn bytes_of_column(rails: &Rails) -> usize {
    if rails.is_pushing() { 2 * QPN_BYTES } else { QPN_BYTES }
}

/// Appends what a PE tells a peer of the queue pairs of a column.
pub(super) fn append_numbers(rails: &Rails, to: &mut Vec<u8>, (sends, receives): (u32, u32)) {
    to.extend(&sends.to_le_bytes()[..QPN_BYTES]);
    if rails.is_pushing() {
        to.extend(&receives.to_le_bytes()[..QPN_BYTES]);
    }
}

/// The peer's ends of the queue pairs of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    /// What this PE sends to.
    pub to: QpAddress,
    /// What the peer sends by, if it does not send by the same.
    pub from: Option<QpAddress>,
}

/// Returns the ends at a peer by column. `ports` are those of its cards, `numbers` what it has told
/// this PE, `targets` the card that each column leads to.
///
/// # Errors
/// The peer has told other than what this version does.
pub(super) fn ends(
    rails: &Rails,
    (me, pe): (usize, usize),
    ports: &[QpAddress],
    numbers: &[u8],
    targets: &[u32],
) -> std::result::Result<Vec<Ends>, TransportError> {
    let unreadable = || TransportError::Address { pe };
    let share = bytes_of_column(rails);
    if numbers.len() != share * targets.len() {
        return Err(unreadable());
    }
    let apart = rails.are_apart(me, pe);
    let number = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
    let on = |card: u32, bytes: &[u8]| {
        ports.get(card as usize).map(|port| QpAddress { qpn: number(bytes), ..*port }).ok_or_else(unreadable)
    };
    let of_column = |(bytes, target): (&[u8], &u32)| {
        let (sends, receives) = bytes.split_at(QPN_BYTES);
        if apart {
            let from = on(rails.sender(pe, me, *target), sends)?;
            Ok(Ends { to: on(*target, receives)?, from: Some(from) })
        } else {
            Ok(Ends { to: on(*target, sends)?, from: None })
        }
    };
    numbers.chunks(share).zip(targets).map(of_column).collect()
}
