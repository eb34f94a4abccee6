//! Room on the GPU for the software HCA's kernel beside kernels that wait for it.

use cudarc::driver::sys::CUdevice_attribute;

use oxshmem_system::words::{count32, native};

use super::driver::{DriverError, Gpu};

/// What a block of a kernel takes of a multiprocessor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub threads: u32,
    /// The registers of each thread.
    pub registers: u32,
    /// Bytes, static and dynamic.
    pub shared: u32,
}

/// The software HCA's kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resident {
    pub block: Block,
    pub blocks: u32,
}

/// A GPU's multiprocessors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Multiprocessors {
    pub count: u32,
    threads: u32,
    blocks: u32,
    registers: u32,
    /// Bytes.
    shared: u32,
    /// Bytes of it that the system takes for each block.
    shared_of_system: u32,
}

/// Warps are spread over this many partitions of a multiprocessor, each with its part of the
/// registers.
const PARTITIONS: u64 = 4;
/// Registers are handed out to a warp in such units, shared memory to a block in such bytes (CUDA
/// occupancy calculator, from compute capability 8.0 on).
const REGISTER_UNIT: u32 = 256;
const SHARED_UNIT: u32 = 128;

impl Multiprocessors {
    /// Returns the multiprocessors of `gpu`.
    pub fn of(gpu: Gpu) -> Result<Self, DriverError> {
        let value = |attribute| gpu.attribute(attribute).map(i32::unsigned_abs);
        Ok(Self {
            count: value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            threads: value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            blocks: value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            registers: value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            shared: value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            shared_of_system: value(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
        })
    }

    fn shared_of(&self, block: Block) -> u32 {
        (block.shared + self.shared_of_system).next_multiple_of(SHARED_UNIT)
    }

    /// Returns whether one holds the given numbers of blocks of both at the same time.
    fn holds(&self, parts: [(u32, Block); 2]) -> bool {
        let sum =
            |of: &dyn Fn(u32, Block) -> u64| -> u64 { parts.iter().map(|(count, block)| of(*count, *block)).sum() };
        let warps = |count: u32, block: Block| u64::from(count) * u64::from(block.threads.div_ceil(32));
        let registers = |count, block: Block| {
            warps(count, block).div_ceil(PARTITIONS) * u64::from((block.registers * 32).next_multiple_of(REGISTER_UNIT))
        };
        sum(&|count, _| u64::from(count)) <= u64::from(self.blocks)
            && sum(&|count, block| warps(count, block) * 32) <= u64::from(self.threads)
            && sum(&registers) <= u64::from(self.registers) / PARTITIONS
            && sum(&|count, block| u64::from(count) * u64::from(self.shared_of(block))) <= u64::from(self.shared)
    }

    /// Returns the most of `add`, at most `limit`, that one holds beside the given number of
    /// `beside`.
    fn most(&self, limit: u32, add: Block, (beside, other): (u32, Block)) -> u32 {
        (0..=limit).rev().find(|count| self.holds([(*count, add), (beside, other)])).unwrap_or(0)
    }

    /// Returns whether `blocks` blocks and the resident kernel run at the same time, whichever
    /// comes first. Blocks are spread evenly.
    fn hold_both(&self, blocks: u64, per_sm: u32, block: Block, resident: Resident) -> bool {
        let spread = |count: u64| {
            let (each, more) = (count32(native(count / u64::from(self.count))), count % u64::from(self.count));
            [(each, u64::from(self.count) - more), (each + 1, more)]
        };
        let beside = |there: u64, limit: u32, add: Block, other: Block| -> u64 {
            let each = |(count, sms): (u32, u64)| {
                if sms == 0 { 0 } else { sms * u64::from(self.most(limit, add, (count, other))) }
            };
            spread(there).into_iter().map(each).sum()
        };
        let its = u64::from(resident.blocks);
        beside(blocks, resident.blocks, resident.block, block) >= its
            && beside(its, per_sm, block, resident.block) >= blocks
    }

    /// Returns the most blocks of a kernel, of which one holds `per_sm`, that leave room for the
    /// resident one.
    pub fn limit_beside(&self, per_sm: u32, block: Block, resident: Resident) -> u64 {
        let (mut low, mut high) = (0, u64::from(per_sm) * u64::from(self.count));
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.hold_both(middle, per_sm, block, resident) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Returns the share of an SM's memory that shared memory should have, in percent, for `blocks`
    /// blocks in all and one of the resident kernel on each: what is set aside does not change
    /// while a block runs.
    pub fn carveout(&self, blocks: u64, block: Block, resident: Resident) -> u32 {
        let each = blocks.div_ceil(u64::from(self.count));
        let bytes = each * u64::from(self.shared_of(block)) + u64::from(self.shared_of(resident.block));
        (100 * bytes).div_ceil(u64::from(self.shared.max(1))).min(100) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H200's (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
    const H200: Multiprocessors = Multiprocessors {
        count: 132,
        threads: 2048,
        blocks: 32,
        registers: 65536,
        shared: 228 << 10,
        shared_of_system: 1 << 10,
    };
    const HCA: Resident = Resident { block: Block { threads: 256, registers: 64, shared: 9864 }, blocks: 16 };

    fn limit(threads: u32, registers: u32, shared: u32, per_sm: u32) -> u64 {
        H200.limit_beside(per_sm, Block { threads, registers, shared }, HCA)
    }

    #[test]
    fn what_fills_a_multiprocessor_leaves_others_free() {
        // 48 K of the 64 K registers, and 40 K: one block on each.
        assert_eq!(limit(512, 96, 264, 1), 132);
        assert_eq!(limit(512, 80, 264, 1), 132);
        // All registers, all threads but 128, all shared memory: 16 multiprocessors are left to the
        // HCA.
        assert_eq!(limit(1024, 64, 264, 1), 116);
        assert_eq!(limit(960, 32, 0, 2), 2 * 132 - 16);
        assert_eq!(limit(64, 32, 227 << 10, 1), 116);
        // Two on each take all registers: on 16 there is one.
        assert_eq!(limit(512, 64, 264, 2), 2 * 132 - 16);
        // Small ones, spread evenly: 16 multiprocessors have 256 threads, or 4 K registers in each
        // partition, to spare.
        assert_eq!(limit(64, 16, 0, 32), 28 * 132 + 116);
        assert_eq!(limit(64, 64, 0, 16), 12 * 132 + 116);
        // Two of the HCA's fit beside four of these.
        assert_eq!(limit(32, 255, 0, 8), 4 * 132 + 124);
    }

    #[test]
    fn a_gpu_that_is_too_small_holds_none() {
        let small = Multiprocessors { count: 2, registers: 8 << 10, ..H200 };
        assert_eq!(small.limit_beside(8, Block { threads: 32, registers: 32, shared: 0 }, HCA), 0);
    }

    #[test]
    fn shared_memory_is_set_aside_for_both() {
        let block = Block { threads: 512, registers: 80, shared: 264 };
        let bytes = |percent: u32| u64::from(percent) * (228 << 10) / 100;
        let both = |blocks: u64| blocks * (1024 + 384) + 1024 + 9984;
        for (blocks, each) in [(1, 1), (132, 1), (133, 2)] {
            let percent = H200.carveout(blocks, block, HCA);
            assert!(bytes(percent) >= both(each) && bytes(percent - 1) < both(each), "{blocks}: {percent}");
        }
        assert_eq!(H200.carveout(132, Block { shared: 227 << 10, ..block }, HCA), 100);
    }
}
