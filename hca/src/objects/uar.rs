//! Pages of doorbell registers, and how queue pairs share them.

use super::owned::{Guard, Owned};
use crate::error::{Error, Result};
use crate::prm::qpc::SendDbrMode;
use crate::provider::{Provider, Rung, UarPage};
use std::sync::Arc;

/// A page of doorbell registers.
#[derive(Debug)]
pub struct Uar {
    pub(super) guard: Guard,
    page: UarPage,
}

impl Uar {
    /// Allocates one.
    pub fn alloc(provider: &Arc<dyn Provider>, rung: Rung) -> Result<Arc<Self>> {
        let page = provider.alloc_uar(rung)?;
        Ok(Arc::new(Self { guard: Guard::new(provider, Owned::Uar(page.page_id)), page }))
    }

    /// Returns its number.
    pub fn page_id(&self) -> u32 {
        self.page.page_id
    }

    /// Returns how many registers queue pairs of a mode may use.
    pub fn registers(&self, mode: SendDbrMode) -> usize {
        self.page.registers_of(mode).len()
    }

    /// Returns the page as the HCA gave it.
    pub fn page(&self) -> &UarPage {
        &self.page
    }

    /// Returns the address of register `index` of those for queue pairs of a mode, valid as long as
    /// this object.
    pub fn register(&self, mode: SendDbrMode, index: usize) -> Option<*mut u64> {
        let offset = *self.page.registers_of(mode).get(index)?;
        Some(self.page.base.wrapping_add(offset).cast())
    }

    /// Frees it now. Fails while CQs and QPs use it.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}

/// Pages of a card that the queue pairs of a process share. More of them would not ring faster, and
/// each has to be mapped for a GPU.
const MAX_SHARED_PAGES: usize = 16;

/// A doorbell register for a queue pair.
#[derive(Debug, Clone)]
pub struct Doorbell {
    /// Its page, which the queue pair has to name.
    pub uar: Arc<Uar>,
    /// Its offset in the page, bytes.
    pub offset: usize,
}

impl Doorbell {
    /// Returns where this process has mapped the register.
    pub fn address(&self) -> *mut u64 {
        self.uar.page.base.wrapping_add(self.offset).cast()
    }
}

/// Gives each queue pair a doorbell register: one of its own, or on a card one of a few that are
/// shared.
#[derive(Debug)]
pub struct Doorbells {
    provider: Arc<dyn Provider>,
    rung: Rung,
    mode: SendDbrMode,
    pages: Vec<Arc<Uar>>,
    given: usize,
}

impl Doorbells {
    /// Creates the set without a register so far; `rung` says what will ring, and `mode` whether
    /// the queue pairs have doorbell records.
    pub fn new(provider: &Arc<dyn Provider>, rung: Rung, mode: SendDbrMode) -> Self {
        Self { provider: Arc::clone(provider), rung, mode, pages: Vec::new(), given: 0 }
    }

    /// Returns the register for the next queue pair.
    pub fn give(&mut self) -> Result<Doorbell> {
        let room: usize = self.pages.iter().map(|page| page.registers(self.mode)).sum();
        let shared = self.pages.first().is_some_and(|page| page.page.device_registers);
        if self.given >= room && !(shared && self.pages.len() >= MAX_SHARED_PAGES) {
            match Uar::alloc(&self.provider, self.rung) {
                Ok(page) if page.registers(self.mode) == 0 => {
                    let rule = format!("a page without doorbell registers for queue pairs of {}", self.mode.name());
                    return Err(Error::argument("uar", page.page_id(), rule));
                }
                Ok(page) => self.pages.push(page),
                // A card that gives no more pages has given enough.
                Err(error) if shared => tracing::debug!(%error, pages = self.pages.len(), "doorbell pages are shared"),
                Err(error) => return Err(error),
            }
        }
        let room: usize = self.pages.iter().map(|page| page.registers(self.mode)).sum();
        let mut index = self.given % room;
        self.given += 1;
        for page in &self.pages {
            match page.page.registers_of(self.mode).get(index) {
                Some(offset) => return Ok(Doorbell { uar: Arc::clone(page), offset: *offset }),
                None => index -= page.registers(self.mode),
            }
        }
        Err(Error::argument("uar", self.given, "no doorbell register"))
    }
}
