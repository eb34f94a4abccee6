//! What PEs tell each other to connect queue pairs: the addresses of the ports to all, once for
//! each card, and to each PE the numbers of the queue pairs that lead to it.

use oxshmem_hca::objects::QpAddress;
use oxshmem_proxy::striping::Striping;

use super::error::TransportError;
use super::queues::QPN_BYTES;
use crate::Result;
use crate::bootstrap::Bootstrap;

/// Exchanges the addresses of ports, by card, with 0 in the place of QP numbers: 34 bytes for each
/// card of every PE. Returns them by PE. Collective.
///
/// # Errors
/// The exchange fails, or a PE has another number of cards.
pub(super) fn exchange_ports(bootstrap: &Bootstrap, ports: &[QpAddress]) -> Result<Vec<Vec<QpAddress>>> {
    let mine: Vec<u8> = ports.iter().flat_map(QpAddress::to_bytes).collect();
    let told = bootstrap.allgather("addresses of ports", &mine)?;
    let read = |(pe, bytes): (usize, &Vec<u8>)| {
        let theirs = bytes.chunks(QpAddress::BYTES).map(QpAddress::from_bytes).collect::<Result<Vec<_>, _>>()?;
        if theirs.len() == ports.len() { Ok(theirs) } else { Err(TransportError::Address { pe }.into()) }
    };
    told.iter().enumerate().map(read).collect()
}

/// Exchanges the addresses of queue pairs: those of ports, and 3 bytes for each queue pair.
/// `number` returns the number of the queue pair to a PE with that index among those to it, 0 where
/// there is none. Returns by PE the addresses of its queue pairs to this one, by index. Collective.
///
/// # Errors
/// The exchange fails, or a PE has another number of cards or of queue pairs.
pub(super) fn exchange(
    bootstrap: &Bootstrap,
    ports: &[QpAddress],
    striping: Striping,
    number: impl Fn(u32, u32) -> u32,
) -> Result<Vec<Vec<QpAddress>>> {
    let ports = exchange_ports(bootstrap, ports)?;
    let mine: Vec<u8> = (0..bootstrap.size())
        .flat_map(|pe| (0..striping.per_peer()).map(move |i| (pe, i)))
        .flat_map(|(pe, i)| number(pe, i).to_le_bytes().into_iter().take(QPN_BYTES))
        .collect();
    let numbers = bootstrap.alltoall("numbers of queue pairs", &mine)?;
    let of_pe = |(pe, (ports, numbers)): (usize, (&Vec<QpAddress>, &Vec<u8>))| -> Result<Vec<QpAddress>> {
        let (numbers, rest) = numbers.as_chunks::<QPN_BYTES>();
        if (numbers.len(), rest.len()) != (striping.per_peer() as usize, 0) {
            return Err(TransportError::Address { pe }.into());
        }
        let address = |(i, number): (u32, &[u8; QPN_BYTES])| {
            let qpn = u32::from_le_bytes([number[0], number[1], number[2], 0]);
            QpAddress { qpn, ..ports[striping.card(i) as usize] }
        };
        Ok((0..).zip(numbers).map(address).collect())
    };
    ports.iter().zip(&numbers).enumerate().map(of_pe).collect()
}
