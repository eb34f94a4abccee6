//! Running a program, and what it leaves behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs a program with arguments that blanks separate; of the library's variables it sees `env`
/// alone.
pub fn run(program: &str, args: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OXSHMEM_")) {
        command.env_remove(name);
    }
    command.args(args.split_whitespace()).envs(env.iter().copied()).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns what a table's title says, in one line.
#[allow(dead_code)]
pub fn unfolded(text: &str) -> String {
    text.replace("\n#   ", " ")
}

/// A file that goes away with the test.
pub struct File(PathBuf);

impl File {
    pub fn new(end: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("oxshmem-perftest-{}-{number}.{end}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    #[allow(dead_code)]
    pub fn read(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
