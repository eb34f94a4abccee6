//! Limits of the system that a process meets, and what to do about them.

/// Returns what to do about an error of the system, after a semicolon, if that is known.
pub(crate) fn remedy(source: &std::io::Error) -> String {
    match source.raw_os_error() {
        Some(libc::EMFILE) => format!("; {}", oxshmem_system::NoDescriptor),
        Some(libc::EFBIG) => {
            "; shared memory counts as a file: raise the limit on the size of files (ulimit -f, LimitFSIZE= of a service)".to_owned()
        }
        _ => String::new(),
    }
}
