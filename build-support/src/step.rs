//! One compiler run that is repeated only when something it depends on changed.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::SystemTime;

use crate::Error;

/// Work for [`run_all`].
pub(crate) type Job<'a> = Box<dyn FnOnce() -> Result<(), Error> + Send + 'a>;

/// Jobs of this process that run now: modules that are compiled by several threads share the cores.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// The right to run one job. Dropping it lets another one begin.
struct Turn;

impl Turn {
    /// Waits until fewer than `width` jobs run.
    fn wait(width: usize) -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |running: &mut usize| *running >= width.max(1);
        *ENDED.wait_while(running, full).unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

/// Runs `jobs`, at most `width` of this process at a time. Returns the error of the first job, in
/// their order, that failed.
pub(crate) fn run_all(jobs: Vec<Job<'_>>, width: usize) -> Result<(), Error> {
    let count = jobs.len();
    let queue = Mutex::new(jobs.into_iter().enumerate());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..width.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    // A poisoned lock means that a job panicked; the scope passes that on.
                    let Ok(Some((index, job))) = queue.lock().map(|mut queue| queue.next()) else { break };
                    let turn = Turn::wait(width);
                    let result = job();
                    drop(turn);
                    if let (Err(error), Ok(mut failures)) = (result, failures.lock()) {
                        failures.push((index, error));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failures.into_iter().min_by_key(|(index, _)| *index) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// A compiler run: its inputs are the files it lists in a dependency file (`-MMD`), the device
/// headers, and its command.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// What it does, for errors.
    pub what: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Anything else the result depends on, such as the compiler's version.
    pub salt: String,
    /// The file it writes.
    pub output: PathBuf,
    /// Files it reads that no dependency file lists.
    pub inputs: Vec<PathBuf>,
    /// The dependency file it writes, if it writes one.
    pub depfile: Option<PathBuf>,
}

impl Step {
    /// Returns a step that makes `output` from the file `input` alone.
    pub fn after(what: String, command: Vec<String>, input: &Path, output: PathBuf) -> Self {
        Self { what, command, salt: String::new(), output, inputs: vec![input.to_owned()], depfile: None }
    }

    /// Runs, unless the output is there and everything it was made from is unchanged. Returns
    /// whether it ran.
    pub fn run(&self) -> Result<bool, Error> {
        let stamp = self.side_file("stamp");
        if self.output.is_file()
            && self.log_file().is_file()
            && let (Ok(old), Ok(new)) = (std::fs::read_to_string(&stamp), self.fingerprint())
            && old == new
        {
            return Ok(false);
        }
        // Without a stamp, an interrupted run is repeated.
        match std::fs::remove_file(&stamp) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::file(&stamp)(error)),
            _ => {}
        }
        let started = SystemTime::now();
        let output = command(&self.command)
            .output()
            .map_err(|source| Error::NoTool { tool: self.command.first().cloned().unwrap_or_default(), source })?;
        let mut log = String::from_utf8_lossy(&output.stdout).into_owned();
        log.push_str(&String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            return Err(Error::Compile {
                what: self.what.clone(),
                status: output.status,
                command: self.command.join(" "),
                output: log.trim_end().to_owned(),
            });
        }
        write_if_changed(&self.log_file(), log.as_bytes())?;
        // A file that was edited meanwhile may or may not be in the output: leave no stamp, so the
        // next run repeats the step.
        let edited = self.dependencies()?.iter().any(|path| {
            std::fs::metadata(path).and_then(|data| data.modified()).is_ok_and(|modified| modified >= started)
        });
        if !edited {
            let text = self.fingerprint()?;
            std::fs::write(&stamp, text).map_err(Error::file(&stamp))?;
        }
        Ok(true)
    }

    /// Returns what the compiler printed when it last ran.
    pub fn log(&self) -> Result<String, Error> {
        let path = self.log_file();
        std::fs::read_to_string(&path).map_err(Error::file(&path))
    }

    /// Returns every file the output was made from, as known since the last run; system headers are
    /// left out.
    pub fn dependencies(&self) -> Result<Vec<PathBuf>, Error> {
        let mut paths = self.inputs.clone();
        if let Some(depfile) = &self.depfile {
            let text = std::fs::read_to_string(depfile).map_err(Error::file(depfile))?;
            paths.extend(parse_depfile(&text));
        }
        paths.sort();
        paths.dedup();
        Ok(paths)
    }

    fn log_file(&self) -> PathBuf {
        self.side_file("log")
    }

    fn side_file(&self, extension: &str) -> PathBuf {
        let mut name = self.output.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(extension);
        self.output.with_file_name(name)
    }

    fn fingerprint(&self) -> Result<String, Error> {
        let mut hasher = DefaultHasher::new();
        self.command.hash(&mut hasher);
        self.salt.hash(&mut hasher);
        for path in self.dependencies()? {
            path.hash(&mut hasher);
            std::fs::read(&path).map_err(Error::file(&path))?.hash(&mut hasher);
        }
        Ok(format!("{:016x}\n", hasher.finish()))
    }
}

/// Returns a command from program and arguments.
pub(crate) fn command(words: &[String]) -> Command {
    let mut command = Command::new(words.first().map_or("", String::as_str));
    command.args(words.get(1..).unwrap_or_default());
    command
}

/// Returns the words of a command, for [`Step::command`].
pub(crate) fn words(command: &Command) -> Vec<String> {
    std::iter::once(command.get_program()).chain(command.get_args()).map(|w| w.to_string_lossy().into_owned()).collect()
}

/// Writes `content` unless the file holds it already: its time then stays as it is.
pub(crate) fn write_if_changed(path: &Path, content: &[u8]) -> Result<(), Error> {
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    std::fs::write(path, content).map_err(Error::file(path))
}

/// Returns the prerequisites in a make rule, as compilers write them: separated by blanks, lines
/// joined by a backslash, and blanks in names escaped by one.
fn parse_depfile(text: &str) -> Vec<PathBuf> {
    let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let rule = text.lines().next().unwrap_or_default();
    let prerequisites = rule.split_once(": ").map_or("", |(_, list)| list);
    let mut paths = Vec::new();
    let mut word = String::new();
    let mut characters = prerequisites.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if characters.peek().is_some_and(|next| matches!(next, ' ' | '#' | '\\')) => {
                word.extend(characters.next());
            }
            '$' if characters.peek() == Some(&'$') => word.extend(characters.next()),
            c if c.is_whitespace() => {
                if !word.is_empty() {
                    paths.push(PathBuf::from(std::mem::take(&mut word)));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        paths.push(PathBuf::from(word));
    }
    paths
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn depfile_words() {
        let text = "/out/a.o: /src/a.cu \\\n /src/with\\ blank.h /src/cost$$.h\n\n/src/with\\ blank.h:\n";
        assert_eq!(parse_depfile(text), ["/src/a.cu", "/src/with blank.h", "/src/cost$.h"].map(PathBuf::from).to_vec());
        assert!(parse_depfile("").is_empty());
    }

    #[test]
    fn all_jobs_run_and_the_first_error_in_order_is_returned() {
        let ran = Mutex::new(Vec::new());
        let job = |index: usize, fails: bool| -> Job<'_> {
            let ran = &ran;
            Box::new(move || {
                ran.lock().unwrap().push(index);
                if fails { Err(Error::BadName(index.to_string())) } else { Ok(()) }
            })
        };
        let error = run_all(vec![job(0, false), job(1, true), job(2, true), job(3, false)], 2).unwrap_err();
        assert!(matches!(error, Error::BadName(name) if name == "1"));
        let mut ran = ran.into_inner().unwrap();
        ran.sort_unstable();
        assert_eq!(ran, [0, 1, 2, 3]);
        run_all(Vec::new(), 0).unwrap();
    }

    #[test]
    fn threads_together_run_no_more_jobs_than_allowed() {
        const WIDTH: usize = 3;
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let jobs = || -> Vec<Job<'_>> {
            let job = || -> Job<'_> {
                Box::new(|| {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                })
            };
            (0..4).map(|_| job()).collect()
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| run_all(jobs(), WIDTH).unwrap());
            }
        });
        assert!((1..=WIDTH).contains(&most.into_inner()));
    }
}
