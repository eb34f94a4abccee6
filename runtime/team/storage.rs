//! Where teams lie: the table and lists of members in the slab, workspaces in the heap. Their size
//! is fixed: as many teams as `OXSHMEM_MAX_TEAMS` says, for as many PEs as the job has.

use std::ops::Range;

use oxshmem_system::words::{low32, native};

use super::error::TeamError;
use super::members::Members;
use super::rows::blocks_with_room;
use super::table::Entry;
use crate::Result;
use crate::abi;
use crate::config::Config;
use crate::device::Device;
use crate::heap::SymmetricHeap;
use crate::memory::MemoryKind;
use crate::slab::{Layout, Offset, Slab};

/// Returns the word of a row's grid for the turn after one that has failed.
fn turn_after(grid: u64) -> u64 {
    (grid / abi::GRID_TURN).wrapping_add(2).wrapping_mul(abi::GRID_TURN)
}

/// What the storage needs of a PE.
pub(super) struct Ground<'a> {
    pub device: &'a dyn Device,
    pub slab: &'a Slab,
    /// First address of this PE's heap.
    pub heap_base: u64,
}

/// The places of all teams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TeamStorage {
    table: Offset,
    /// An `i32` for each row and PE.
    members: Offset,
    /// Lists of nodes, an `i32` for each beginning of a node and its end and for each member, as
    /// many for each row as the job has PEs.
    nodes: Offset,
    rows: u64,
    n_pes: u64,
    /// Blocks of a collective that have room in a workspace.
    blocks: u32,
    workspace_bytes: u64,
    /// The offset of the first workspace, in the heap.
    workspaces: u64,
}

impl TeamStorage {
    pub(crate) fn new(layout: &mut Layout, n_pes: u32, config: &Config) -> Self {
        let (n_pes, rows) = (u64::from(n_pes), u64::from(config.max_teams()));
        let blocks = blocks_with_room(n_pes, config);
        Self {
            table: layout.array(MemoryKind::Teams, rows, size_of::<abi::Team>() as u64),
            members: layout.array(MemoryKind::Teams, rows * n_pes, size_of::<i32>() as u64),
            nodes: layout.array(MemoryKind::Teams, rows * (2 * n_pes + 1), size_of::<i32>() as u64),
            rows,
            n_pes,
            blocks,
            workspace_bytes: abi::team_workspace_bytes(n_pes, blocks.into()),
            workspaces: 0,
        }
    }

    /// Takes the workspaces from the heap, and begins without teams. The range of the heap must
    /// then be backed by memory.
    pub(crate) fn reserve(&mut self, heap: &mut SymmetricHeap, slab: &Slab) -> Result<Range<u64>> {
        let bytes = self.workspaces_bytes();
        let first = heap.reserve(bytes, abi::LINE_BYTES).map_err(|_| TeamError::NoHeap {
            bytes,
            teams: self.rows,
            heap: heap.layout().max,
        })?;
        self.workspaces = first;
        // All bits of `TEAM_INVALID` are set, and of a row without a team the handle alone is
        // looked at.
        slab.fill(self.table, self.rows * size_of::<abi::Team>() as u64, 0xff)?;
        Ok(first..first + bytes)
    }

    /// Returns how many bytes of the heap the workspaces take.
    pub(crate) fn workspaces_bytes(&self) -> u64 {
        self.rows * self.workspace_bytes
    }

    /// Returns how many blocks can share a collective.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    pub(crate) fn describe(&self, slab: &Slab, state: &mut abi::State) {
        state.teams = slab.address(self.table);
        state.max_teams = low32(self.rows);
        state.collective_blocks = self.blocks;
    }

    /// Makes teams fit for further calls of grids that have given up the last one, because some
    /// blocks have not made it. The kernels with those grids should have ended.
    pub(crate) fn forget_incomplete_grids(&self, slab: &Slab) -> Result<()> {
        const WORDS: usize = size_of::<abi::Team>() / 8;
        const GRID_AT: usize = core::mem::offset_of!(abi::Team, grid) / 8;
        for (row, abi::Team { handle, grid, .. }) in self.read(slab)?.into_iter().enumerate() {
            if handle != abi::TEAM_INVALID && grid & abi::GRID_GIVEN_UP != 0 {
                slab.write(self.table, (row * WORDS + GRID_AT) as u64, &turn_after(grid))?;
            }
        }
        Ok(())
    }

    /// Makes teams fit for further calls after a kernel was stopped in the middle of one, which its
    /// blocks have counted in part. No kernel may run.
    pub(crate) fn forget_stopped_kernels(&self, slab: &Slab) -> Result<()> {
        const QUADS: usize = size_of::<abi::Team>() / 8;
        const GRID_AT: usize = core::mem::offset_of!(abi::Team, grid) / 8;
        const WORDS: usize = size_of::<abi::Team>() / 4;
        const EPOCH_AT: usize = core::mem::offset_of!(abi::Team, epoch) / 4;
        const ENTERED_AT: usize = core::mem::offset_of!(abi::Team, entered) / 4;
        for (row, abi::Team { handle, grid, entered, epoch, .. }) in self.read(slab)?.into_iter().enumerate() {
            if handle == abi::TEAM_INVALID {
                continue;
            }
            if grid % abi::GRID_TURN != 0 {
                slab.write(self.table, (row * QUADS + GRID_AT) as u64, &turn_after(grid))?;
            }
            if entered != 0 {
                // These blocks have told the other members of the epoch.
                slab.write(self.table, (row * WORDS + EPOCH_AT) as u64, &abi::epoch_after(epoch))?;
                slab.write(self.table, (row * WORDS + ENTERED_AT) as u64, &0_u32)?;
            }
        }
        Ok(())
    }

    /// Returns all rows of the table, those without a team among them.
    pub(crate) fn read(&self, slab: &Slab) -> Result<Vec<abi::Team>> {
        Ok(slab.read_many(self.table, 0, native(self.rows))?)
    }

    fn workspace(&self, row: usize) -> u64 {
        self.workspaces + row as u64 * self.workspace_bytes
    }

    pub(super) fn clear_workspace(&self, ground: &Ground<'_>, row: usize) -> Result<()> {
        // SAFETY: the workspaces are an allocation of the heap that is never freed.
        Ok(unsafe { ground.device.fill(ground.heap_base + self.workspace(row), 0, self.workspace_bytes) }?)
    }

    /// Handles of the row's team are refused from here on.
    pub(super) fn clear_row(&self, slab: &Slab, row: usize) -> Result<()> {
        Ok(slab.write(self.table, row as u64, &abi::Team::none())?)
    }

    /// Makes a team known to device code, with its counters at zero, and notes in `entry` what
    /// launches say of it.
    pub(super) fn write_row(&self, ground: &Ground<'_>, entry: &mut Entry) -> Result<()> {
        let slab = ground.slab;
        let row = entry.place.row as u64;
        let int = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        let (start, stride, members) = match &entry.members {
            Members::Strided { start, stride, .. } => (*start, *stride, 0),
            Members::List(pes) => {
                let first = row * self.n_pes;
                let list = slab.address(self.members) + first * size_of::<i32>() as u64;
                let numbers: Vec<i32> = pes.iter().map(|pe| int(*pe)).collect();
                // SAFETY: each row has room for all PEs of the job.
                unsafe { ground.device.write(list, bytemuck::cast_slice(&numbers)) }?;
                (0, 0, list)
            }
        };
        let seat = entry.nodes.seat(entry.me);
        let nodes = slab.address(self.nodes) + row * (2 * self.n_pes + 1) * size_of::<i32>() as u64;
        // SAFETY: each row has room for as many nodes and members as the job has PEs.
        unsafe { ground.device.write(nodes, bytemuck::cast_slice(&entry.nodes.table())) }?;
        let workspace = ground.heap_base + self.workspace(entry.place.row);
        let team = abi::Team {
            handle: entry.place.handle(),
            my_pe: int(entry.me),
            n_pes: int(entry.members.len()),
            start: int(start),
            stride: int(stride),
            one_round: entry.near.into(),
            packet_share: abi::packet_share(entry.members.len()),
            block_share: abi::block_share(entry.members.len()),
            members,
            workspace,
            chosen: entry.chooser.chosen(),
            n_nodes: low32(entry.nodes.count() as u64),
            my_node: low32(seat.node as u64),
            number_in_node: low32(seat.number as u64),
            rails: low32(entry.nodes.rails() as u64),
            nodes,
            grid_words: workspace + abi::grid_words_at(entry.members.len() as u64, self.blocks.into()),
            choices: entry.chooser.choices(),
            ..abi::Team::none()
        };
        entry.known = abi::KnownTeam {
            handle: team.handle,
            my_pe: team.my_pe,
            n_pes: team.n_pes,
            start: team.start,
            stride: team.stride,
            one_round: team.one_round,
            packet_share: team.packet_share,
            block_share: team.block_share,
            members: team.members,
            workspace: team.workspace,
            row: slab.address(self.table) + row * size_of::<abi::Team>() as u64,
        };
        Ok(slab.write(self.table, row, &team)?)
    }
}
