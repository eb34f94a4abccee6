//! PMIx, through the library that the launcher's installation brings: Open MPI's `mpirun`, and
//! `srun --mpi=pmix`. See the PMIx standard, chapters "Initialization and Finalization" and "Data
//! Access and Sharing", <https://pmix.github.io/standard>.

mod sys;
#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::ffi::{CStr, CString, c_int};
use std::sync::mpsc::{RecvTimeoutError, channel};

use super::super::error::BootstrapError;
use super::common::{Seat, left, publish, unusable};
use super::environment::{Environment, check_rank};
use super::start::{Finding, Means, Place, PmixStart, Start, Without};
use super::{openmpi, ports, slurm};
use crate::config::Launcher;
use sys::{Data, Library, Proc, Value};

const THIS: Launcher = Launcher::Pmix;

/// Looks for the variables of PMIx.
pub fn find(environment: &Environment) -> Result<Option<Finding>, BootstrapError> {
    let (namespace, rank) = ("PMIX_NAMESPACE", "PMIX_RANK");
    if !environment.has(namespace) && !environment.has(rank) {
        return Ok(None);
    }
    let name = environment.text(THIS, namespace, rank)?.to_owned();
    let number = environment.number(THIS, rank, namespace)?;
    let local = environment
        .local("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
        .or_else(|| slurm::local_of(environment, number));
    let without = match openmpi::find(environment) {
        Ok(Some(Finding { start: Start::Ports(start), .. })) if start.rank == number => Some(Without::Ports(start)),
        Ok(Some(Finding { start: Start::Alone, .. })) if number == 0 => Some(Without::Alone),
        _ => None,
    };
    let why = environment.show(&[namespace, rank]);
    let start = PmixStart { namespace: name, rank: number, without };
    // The library knows the number of PEs.
    Ok(Some(Finding::new(THIS, u32::MAX, Start::Pmix(start), local, why)))
}

/// Returns the place that PMIx gives, and leaves PMIx.
pub fn place(start: &PmixStart, means: &Means<'_>) -> Result<Option<Place>, BootstrapError> {
    place_with(sys::LIBRARY, start, means)
}

fn place_with(name: &str, start: &PmixStart, means: &Means<'_>) -> Result<Option<Place>, BootstrapError> {
    let library = match (Library::load(name), &start.without) {
        (Ok(library), _) => library,
        (Err(error), Some(without)) => {
            tracing::warn!("{name} cannot be loaded ({}); Open MPI's variables suffice on one node", loader(&error));
            return match without {
                Without::Alone => Ok(None),
                Without::Ports(ports) => ports::place(ports, means),
            };
        }
        (Err(error), None) => {
            return Err(unusable(
                THIS,
                format!(
                    "PMIX_NAMESPACE={} is set, but {name} cannot be loaded: {}; install it (Debian's libpmix2) or add its folder to \
                     LD_LIBRARY_PATH, or start the program with srun --mpi=pmi2",
                    start.namespace,
                    loader(&error)
                ),
            ));
        }
    };
    // The library has no deadlines of its own: a thread waits for it, and is left behind if it
    // does not return.
    let (done, result) = channel();
    let (job, rank) = (start.namespace.clone(), start.rank);
    let thread = std::thread::Builder::new().name("oxshmem-pmix".into()).spawn(move || {
        // An error means that the deadline has passed.
        let _ = done.send(meet(&library, rank));
    });
    thread.map_err(BootstrapError::system("starting a thread for PMIx"))?;
    let late = || {
        unusable(
            THIS,
            format!(
                "PMIX_NAMESPACE={job} PMIX_RANK={rank}: the library did not return within OXSHMEM_BOOTSTRAP_TIMEOUT; check that the launcher and all PEs run"
            ),
        )
    };
    match result.recv_timeout(left(means.deadline).ok_or_else(late)?) {
        Ok(place) => place,
        Err(RecvTimeoutError::Timeout) => Err(late()),
        Err(RecvTimeoutError::Disconnected) => {
            Err(unusable(THIS, "the thread that waits for PMIx has panicked; please report it"))
        }
    }
}

fn loader(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Initialises PMIx, exchanges the rendezvous, and finalizes.
fn meet(library: &Library, rank: u32) -> Result<Option<Place>, BootstrapError> {
    let client = Client::init(library)?;
    let npes = client.number(sys::JOB_SIZE)?;
    check_rank(THIS, ("PMIX_RANK", client.this.rank), ("the job's size", npes))?;
    if client.this.rank != rank {
        let reason = format!(
            "PMIX_RANK={rank}, and the launcher says that this is rank {}; start the program anew",
            client.this.rank
        );
        return Err(unusable(THIS, reason));
    }
    let place = if npes == 1 {
        None
    } else {
        // Some launchers do not say how many processes a node has; then the nodes are taken to be
        // several.
        let one_node = client.number(sys::LOCAL_SIZE).is_ok_and(|local| local == npes);
        let seat = Seat { launcher: THIS, rank, npes, one_node };
        Some(publish(seat, |key, value| client.exchange(key, value))?)
    };
    client.finalize()?;
    Ok(place)
}

/// An initialised library. Its counterpart in MPI, if there is one, counts for itself.
struct Client<'a> {
    library: &'a Library,
    this: Proc,
}

impl<'a> Client<'a> {
    fn init(library: &'a Library) -> Result<Self, BootstrapError> {
        let mut this = Proc { namespace: [0; sys::NAMESPACE], rank: 0 };
        // SAFETY: a place for this process's name, and no infos.
        let status = unsafe { (library.init)(&raw mut this, std::ptr::null_mut(), 0) };
        let client = Self { library, this };
        client.check("PMIx_Init", status)?;
        Ok(client)
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), BootstrapError> {
        if status == sys::SUCCESS {
            return Ok(());
        }
        // SAFETY: the library returns a constant for any status.
        let text = unsafe { (self.library.error_string)(status) };
        let text = if text.is_null() {
            "no text".into()
        } else {
            // SAFETY: as above, it ends with 0.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        Err(unusable(
            THIS,
            format!(
                "{call} failed: {text} ({status}); check that the launcher runs, and that its PMIx and this one's release fit"
            ),
        ))
    }

    /// Returns the whole job.
    fn all(&self) -> Proc {
        Proc { rank: sys::RANK_WILDCARD, ..self.this }
    }

    fn get(&self, of: &Proc, key: &str) -> Result<Fetched, BootstrapError> {
        let name = c_string(key)?;
        let mut value: *mut Value = std::ptr::null_mut();
        // SAFETY: valid names, no infos, and a place for the address of the value.
        let status = unsafe { (self.library.get)(of, name.as_ptr(), std::ptr::null(), 0, &raw mut value) };
        self.check(&format!("PMIx_Get({key})"), status)?;
        if value.is_null() {
            return Err(unusable(
                THIS,
                format!("PMIx_Get({key}) returned nothing; start all PEs with one version of OxSHMEM"),
            ));
        }
        Ok(Fetched(value))
    }

    fn number(&self, key: &str) -> Result<u32, BootstrapError> {
        let value = self.get(&self.all(), key)?;
        value
            .number()
            .ok_or_else(|| unusable(THIS, format!("{key} is not a number; the launcher's PMIx cannot be used")))
    }

    fn exchange(&self, key: &str, value: Option<&str>) -> Result<String, BootstrapError> {
        if let Some(value) = value {
            let (name, text) = (c_string(key)?, c_string(value)?);
            let mut data = Data { size: [0; 3] };
            data.string = text.as_ptr().cast_mut();
            let mut value = Value { kind: sys::STRING, data };
            // SAFETY: the library copies the text, which lives longer than the call.
            let status = unsafe { (self.library.put)(sys::GLOBAL, name.as_ptr(), &raw mut value) };
            self.check("PMIx_Put", status)?;
        }
        // SAFETY: PMIx is initialised.
        self.check("PMIx_Commit", unsafe { (self.library.commit)() })?;
        let (all, collect) = (self.all(), sys::yes(sys::COLLECT_DATA));
        // SAFETY: one name and one info, both alive.
        let status = unsafe { (self.library.fence)(&raw const all, 1, &raw const collect, 1) };
        self.check("PMIx_Fence", status)?;
        let first = Proc { rank: 0, ..self.this };
        let value = self.get(&first, key)?;
        value.text().ok_or_else(|| {
            unusable(THIS, "what rank 0 published is not text; start all PEs with one version of OxSHMEM")
        })
    }

    fn finalize(self) -> Result<(), BootstrapError> {
        // SAFETY: PMIx is initialised, and no infos.
        let status = unsafe { (self.library.finalize)(std::ptr::null(), 0) };
        self.check("PMIx_Finalize", status)
    }
}

/// A value that the library allocated.
struct Fetched(*mut Value);

impl Fetched {
    fn number(&self) -> Option<u32> {
        // SAFETY: the library's value; its type says which member there is.
        unsafe { ((*self.0).kind == sys::UINT32).then(|| (*self.0).data.uint32) }
    }

    fn text(&self) -> Option<String> {
        // SAFETY: as above; the text ends with 0.
        unsafe {
            let value = &*self.0;
            (value.kind == sys::STRING && !value.data.string.is_null())
                .then(|| CStr::from_ptr(value.data.string).to_string_lossy().into_owned())
        }
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        // SAFETY: as `PMIX_VALUE_RELEASE` does for text and numbers, with the library's `free`.
        unsafe {
            if (*self.0).kind == sys::STRING {
                libc::free((*self.0).data.string.cast());
            }
            libc::free(self.0.cast());
        }
    }
}

fn c_string(text: &str) -> Result<CString, BootstrapError> {
    CString::new(text).map_err(|_| unusable(THIS, format!("'{text}' has a 0 in it; please report it")))
}
