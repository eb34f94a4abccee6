//! What device functions use, as `ptxas -v` reports it.

use std::fmt::Write as _;
use std::path::Path;

use crate::{Error, step};

/// What one device function uses on one real architecture.
///
/// `ptxas` reports frame and spills for every function, the other figures for kernels only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionUsage {
    /// The real architecture: 90 stands for `sm_90`.
    pub arch: u32,
    /// The symbol, mangled if it has C++ linkage.
    pub name: String,
    /// Stack frame, in bytes per thread.
    pub stack_bytes: u32,
    /// Spilled to local memory, in bytes per thread.
    pub spill_store_bytes: u32,
    /// Filled from local memory, in bytes per thread.
    pub spill_load_bytes: u32,
    /// Registers per thread; `None` for a function that is not a kernel.
    pub registers: Option<u32>,
    /// Static shared memory, in bytes per block.
    pub shared_bytes: u32,
    /// Named barriers.
    pub barriers: u32,
}

/// Reads what `ptxas -v` printed for `arch`. Lines it does not know are passed over.
///
/// The format is that of ptxas 12.8 to 13.0:
///
/// ```text
/// ptxas info    : Compiling entry function 'ring' for 'sm_90'
/// ptxas info    : Function properties for ring
///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 10 registers, used 1 barriers, 16 bytes smem
/// ```
pub(crate) fn parse(arch: u32, log: &str) -> Vec<FunctionUsage> {
    let mut functions: Vec<FunctionUsage> = Vec::new();
    let mut compiling: Option<String> = None;
    for line in log.lines() {
        let info =
            line.split_once("ptxas info").map(|(_, rest)| rest.trim_start().trim_start_matches(':').trim_start());
        match info {
            Some(info) => {
                if let Some(rest) = info.strip_prefix("Compiling entry function '") {
                    compiling = rest.split('\'').next().map(str::to_owned);
                } else if let Some(name) = info.strip_prefix("Function properties for ") {
                    functions.push(FunctionUsage {
                        arch,
                        name: name.trim().to_owned(),
                        stack_bytes: 0,
                        spill_store_bytes: 0,
                        spill_load_bytes: 0,
                        registers: None,
                        shared_bytes: 0,
                        barriers: 0,
                    });
                } else if let Some(rest) = info.strip_prefix("Used ") {
                    // The kernel's own properties may be followed by those of functions it calls.
                    let kernel = compiling.take();
                    let function = functions.iter_mut().rev().find(|f| Some(&f.name) == kernel.as_ref());
                    if let Some(function) = function {
                        function.registers = Some(amount(rest, "registers").unwrap_or(0));
                        function.shared_bytes = amount(rest, "bytes smem").unwrap_or(0);
                        function.barriers = amount(rest, "barriers").unwrap_or(0);
                    }
                }
            }
            None => {
                if let (Some(function), true) = (functions.last_mut(), line.contains("bytes stack frame")) {
                    function.stack_bytes = amount(line, "bytes stack frame").unwrap_or(0);
                    function.spill_store_bytes = amount(line, "bytes spill stores").unwrap_or(0);
                    function.spill_load_bytes = amount(line, "bytes spill loads").unwrap_or(0);
                }
            }
        }
    }
    functions
}

/// Reads what `nvlink -v` printed for `arch`: what each kernel needs together with all functions
/// that it calls. Spills are not known here.
///
/// The format is that of nvlink 12.8 to 13.0:
///
/// ```text
/// nvlink info    : Function properties for 'ring':
/// nvlink info    : used 10 registers, used 1 barriers, 8 stack, 16 bytes smem, 556 bytes cmem[0], 0 bytes lmem
/// ```
pub(crate) fn parse_linked(arch: u32, log: &str) -> Vec<FunctionUsage> {
    let mut functions: Vec<FunctionUsage> = Vec::new();
    let mut kernel: Option<String> = None;
    for line in log.lines() {
        let Some((_, info)) = line.split_once("nvlink info") else { continue };
        let info = info.trim_start().trim_start_matches(':').trim_start();
        if let Some(rest) = info.strip_prefix("Function properties for '") {
            kernel = rest.split('\'').next().map(str::to_owned);
        } else if let (Some(rest), Some(name)) = (info.strip_prefix("used "), kernel.take()) {
            functions.push(FunctionUsage {
                arch,
                name,
                stack_bytes: amount(rest, "stack").unwrap_or(0),
                spill_store_bytes: 0,
                spill_load_bytes: 0,
                registers: Some(amount(rest, "registers").unwrap_or(0)),
                shared_bytes: amount(rest, "bytes smem").unwrap_or(0),
                barriers: amount(rest, "barriers").unwrap_or(0),
            });
        }
    }
    functions
}

/// Returns the number before `unit` in a comma-separated list of amounts.
fn amount(list: &str, unit: &str) -> Option<u32> {
    let item = list.split(',').find(|item| item.trim().ends_with(unit))?;
    item.split_whitespace().find_map(|word| word.parse().ok())
}

/// Writes the figures as a table, one line for each function and architecture.
pub(crate) fn write_report(path: &Path, usage: &[FunctionUsage]) -> Result<(), Error> {
    let mut text = String::from("# arch  registers  stack  spill-stores  spill-loads  shared  barriers  function\n");
    for function in usage {
        let registers = function.registers.map_or("-".to_owned(), |count| count.to_string());
        let _ = writeln!(
            text,
            "sm_{:<4} {registers:>9} {:>6} {:>13} {:>12} {:>7} {:>9}  {}",
            function.arch,
            function.stack_bytes,
            function.spill_store_bytes,
            function.spill_load_bytes,
            function.shared_bytes,
            function.barriers,
            function.name,
        );
    }
    step::write_if_changed(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 1024 bytes gmem, 48 bytes cmem[4]
ptxas info    : Compiling entry function '_Z4spinPi' for 'sm_90'
ptxas info    : Function properties for _Z4spinPi
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 16 bytes cumulative stack size, 4096 bytes smem, 4 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 1.234 ms
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'ring' for 'sm_90'
ptxas info    : Function properties for ring
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for callee
    32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
";

    #[test]
    fn reads_kernels_and_functions() {
        let usage = parse(90, LOG);
        let names: Vec<_> = usage.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["_Z4spinPi", "helper", "ring", "callee"]);
        assert_eq!(
            usage[0],
            FunctionUsage {
                arch: 90,
                name: "_Z4spinPi".to_owned(),
                stack_bytes: 16,
                spill_store_bytes: 8,
                spill_load_bytes: 12,
                registers: Some(255),
                shared_bytes: 4096,
                barriers: 2,
            }
        );
        assert_eq!(usage[1].registers, None);
        assert_eq!((usage[2].registers, usage[2].stack_bytes), (Some(8), 0));
        assert_eq!((usage[3].registers, usage[3].stack_bytes), (None, 32));
    }

    #[test]
    fn reads_what_was_linked() {
        let log = "\
nvlink info    : 88 bytes gmem, 384 bytes cmem[3]
nvlink info    : Function properties for 'put_block':
nvlink info    : used 64 registers, used 1 barriers, 688 stack, 16 bytes smem, 556 bytes cmem[0], 0 bytes lmem
";
        let usage = parse_linked(90, log);
        assert_eq!(usage.len(), 1);
        assert_eq!((usage[0].name.as_str(), usage[0].arch, usage[0].registers), ("put_block", 90, Some(64)));
        assert_eq!((usage[0].stack_bytes, usage[0].barriers, usage[0].shared_bytes), (688, 1, 16));
        assert!(parse_linked(90, LOG).is_empty());
    }

    #[test]
    fn passes_over_what_it_does_not_know() {
        assert!(parse(80, "nvcc warning : something\nptxas info : (C7510) Potential hazard\n").is_empty());
        assert!(parse(80, "").is_empty());
    }
}
