//! What the software HCA has: its port, its queue sizes, its doorbell pages.

use super::memory::PAGE;
use super::tables;
use crate::blueflame;
use crate::port::Mtu;
use crate::wire::doorbell;
use oxshmem_system::words::{const32, native};

/// Distance between doorbell registers in a UAR page, bytes.
pub const REGISTER_STRIDE: usize = 0x80;

/// Doorbell registers in a UAR page.
pub const REGISTERS_PER_PAGE: usize = (native(PAGE) - doorbell::FIRST_REGISTER) / REGISTER_STRIDE;

/// Distance between the registers for QPs without a doorbell record in a UAR page, bytes. A card
/// has one, which they share. Registers here are memory, which keeps the last doorbell alone, so as
/// many QPs may have one each as have another register in the page.
pub const REGISTER_STRIDE_WITHOUT_RECORD: usize = 0x20;
const _: () =
    assert!(doorbell::WITHOUT_RECORD + REGISTERS_PER_PAGE * REGISTER_STRIDE_WITHOUT_RECORD == doorbell::FIRST_REGISTER);

/// log2 of the QPs without a doorbell record, as NCCL's notes have it of ConnectX-8.
pub(super) const LOG_MAX_WITHOUT_RECORD: u8 = 10;

/// The same, as pages and registers are numbered.
pub(super) const PAGE_BELLS: u32 = const32(REGISTERS_PER_PAGE);

/// Bytes of the registers that the host rings.
pub(super) const HOST_DOORBELL_BYTES: usize = tables::PAGES * HOST_PAGE_BYTES;

/// Those of one doorbell page.
pub(super) const HOST_PAGE_BYTES: usize = REGISTERS_PER_PAGE * blueflame::REGISTER_BYTES;

/// The only port.
pub(super) const PORT: u8 = 1;

/// The only entry of the GID table.
pub(super) const GID_INDEX: u8 = 0;

pub(super) const MTU: Mtu = Mtu::B4096;

/// log2 of the largest send queue, in blocks: completion counters have 16 bits.
pub(super) const LOG_MAX_SQ_SIZE: u8 = 15;

pub(super) const LOG_MAX_CQ_SIZE: u8 = 22;

/// log2 of the longest message, 1 GiB.
pub(super) const LOG_MAX_MSG: u8 = 30;

/// log2 of outstanding reads and atomics; the software HCA executes them one by one, so any number
/// is fine.
pub(super) const LOG_MAX_RA: u8 = 4;
/// P_Keys in the table of the port.
pub(super) const PKEYS: u16 = 128;
/// UDP source ports of RoCE v2 start here (InfiniBand specification, annex 17).
pub(super) const FIRST_UDP_SPORT: u16 = 0xc000;
