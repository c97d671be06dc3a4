//! One life of a rank: its process, and the agent's ends of its descriptors.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use resurgo_image::Socket;
use resurgo_pmi::{Place, Progress};
use resurgo_wire::control::{Job, Program, Stdin};
use resurgo_wire::node_memory::{ENV_RANK, IMAGE_FD, NET_FD, NODE_MEMORY_FD, PMI_FD, PROGRAM_FD, SPILL_FD};

use super::images::Saved;
use super::net::Net;
use super::store::Store;
use crate::children;
use crate::sys::set_nonblocking;
use crate::trampoline::IMAGE_FILE_FD;

/// A running process of a rank. Its process group has the same number.
pub struct Life {
    pub pid: Pid,
    pub pmi: UnixStream,
    /// What it has said to PMI of a line that has no end yet.
    pub said: Vec<u8>,
    /// How far it has come in that.
    pub progress: Progress,
    /// Answers that the socket has not taken yet, and bytes of those that it has.
    pub answers: Vec<u8>,
    pub heard: u64,
    pub stdout: Option<PipeReader>,
    pub stderr: Option<PipeReader>,
    /// Where images are asked for, when there are any.
    pub image: Option<Socket>,
    /// Its memory is not all there yet.
    pub filling: Option<Filling>,
}

/// Who brings the memory of a process that was rebuilt from a file, while that runs.
pub struct Filling {
    /// The image that it comes from.
    pub number: u64,
    pub socket: Socket,
    /// The userfaultfds: as long as they are open, who touches what is missing waits for it. Without them there would be zeros.
    pub held: Vec<OwnedFd>,
}

/// The rank's ends of what connects it with the agent.
pub struct Theirs {
    pub pmi: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub image: Option<OwnedFd>,
    pub stdin: Option<PipeReader>,
}

/// What a life begins from.
pub enum Begin<'a> {
    /// The program: this file, or what its path leads to.
    Program(Option<&'a File>),
    Image(&'a Saved),
}

/// What every life of every rank is started with.
pub struct Surroundings<'a> {
    pub job: &'a Job,
    pub node_memory: &'a File,
    pub spill: Option<&'a File>,
    pub net: Option<&'a Net>,
    /// Where its image files are.
    pub store: Option<&'a Store>,
}

impl Surroundings<'_> {
    /// What wakes the mover. An image in a file may have been taken where there is one, or go on there: its process has a bell always.
    fn bell(&self) -> io::Result<Option<OwnedFd>> {
        match (self.net, self.store) {
            (Some(net), _) => net.bell().try_clone_to_owned().map(Some),
            (None, Some(_)) => Ok(Some(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?.into())),
            (None, None) => Ok(None),
        }
    }

    /// The path of an image file, for people.
    fn shown(&self, image: &Saved) -> PathBuf {
        self.store
            .map_or(PathBuf::from(&image.name), |store| store.shown(&image.name))
    }
}

impl Life {
    /// Makes everything that connects a new life with the agent; its process comes later. For rank 0 of a job whose input
    /// is streamed, also returns the way to its input.
    pub fn connect(job: &Job, rank: usize) -> io::Result<(Life, Theirs, Option<PipeWriter>)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        set_nonblocking(&stdout)?;
        set_nonblocking(&stderr)?;
        let (mut stdin, mut input) = (None, None);
        if job.stdin == Stdin::Stream && rank == 0 {
            let (reader, writer) = io::pipe()?;
            set_nonblocking(&writer)?;
            (stdin, input) = (Some(reader), Some(writer));
        }
        let (mut image, mut image_end) = (None, None);
        if job.images {
            let (ours, theirs) = Socket::pair()?;
            (image, image_end) = (Some(ours), Some(theirs));
        }
        let life = Life {
            pid: Pid::from_raw(0),
            pmi: ours,
            said: Vec::new(),
            progress: Progress::default(),
            answers: Vec::new(),
            heard: 0,
            stdout: Some(stdout),
            stderr: Some(stderr),
            image,
            filling: None,
        };
        let theirs = Theirs {
            pmi: theirs.into(),
            stdout: stdout_writer.into(),
            stderr: stderr_writer.into(),
            image: image_end,
            stdin,
        };
        Ok((life, theirs, input))
    }

    /// Starts the program of `rank` from its beginning, or from an image in a file. Returns as
    /// [`Life::connect`] does.
    pub fn start(
        around: &Surroundings,
        rank: usize,
        place: &Place,
        program: &Program,
        begin: Begin,
    ) -> io::Result<(Life, Option<PipeWriter>)> {
        let (mut life, theirs, input) = Life::connect(around.job, rank)?;
        // What cannot be opened is as good as damaged: the process says so.
        let (saved, unusable) = match (&begin, around.store) {
            (Begin::Image(image), Some(store)) => match store.image(&image.name) {
                Ok(file) => (Some(file), String::new()),
                Err(error) => (None, error.to_string()),
            },
            _ => (None, String::new()),
        };
        let mut command = command(around, rank, place, program, &begin, &unusable);
        command
            .stdin(standard_input(theirs.stdin, around.job, rank)?)
            .stdout(theirs.stdout)
            .stderr(theirs.stderr)
            .process_group(0);
        let mut mappings = vec![
            FdMapping {
                parent_fd: theirs.pmi,
                child_fd: PMI_FD,
            },
            FdMapping {
                parent_fd: around.node_memory.try_clone()?.into(),
                child_fd: NODE_MEMORY_FD,
            },
        ];
        if let Some(spill) = around.spill {
            mappings.push(FdMapping {
                parent_fd: spill.try_clone()?.into(),
                child_fd: SPILL_FD,
            });
        }
        if let Some(bell) = around.bell()? {
            mappings.push(FdMapping {
                parent_fd: bell,
                child_fd: NET_FD,
            });
        }
        if let Begin::Program(Some(file)) = begin {
            mappings.push(FdMapping {
                parent_fd: file.try_clone()?.into(),
                child_fd: PROGRAM_FD,
            });
        }
        if let Some(image) = theirs.image {
            mappings.push(FdMapping {
                parent_fd: image,
                child_fd: IMAGE_FD,
            });
        }
        if let Some(file) = saved {
            mappings.push(FdMapping {
                parent_fd: file.into(),
                child_fd: IMAGE_FILE_FD,
            });
        }
        command
            .fd_mappings(mappings)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let child = command.spawn()?;
        life.pid = Pid::from_raw(child.id() as i32);
        Ok((life, input))
    }

    /// Sends `signal` to the process and everything in its group.
    pub fn signal(&self, signal: Signal) {
        assert!(self.pid.as_raw() > 0, "a life that has no process yet gets no signals");
        // ESRCH only: the numbers are ours, and not given to others before the process is reaped.
        let group = killpg(self.pid, signal);
        // A woken process makes its group itself, and may not have come so far.
        if group.is_err() || signal == Signal::SIGKILL {
            let _ = kill(self.pid, signal);
        }
    }

    /// Kills what is left of it and reaps the process, which has ended: nothing of it may touch the node memory once the
    /// next life has begun. The group is killed before its leader is reaped, while its number cannot be anybody else's.
    pub fn fence(&self, patience: Duration) {
        self.signal(Signal::SIGKILL);
        children::reap(self.pid);
        children::fence(self.pid, patience);
    }
}

/// The same in every life of the rank: an address or a length that differs would move the program's memory.
fn environment(
    program: &Program,
    rank: usize,
    place: &Place,
    (local, locals): (usize, usize),
) -> Vec<(OsString, OsString)> {
    let mut all = program.environment.clone();
    let (own, size) = (place.rank.to_string(), place.size.to_string());
    let (local, locals) = (local.to_string(), locals.to_string());
    let mut set = |name: &str, value: String| {
        all.retain(|(known, _)| known != name);
        all.push((name.into(), value.into()));
    };
    set("PMI_FD", PMI_FD.to_string());
    set("PMI_RANK", own.clone());
    set("PMI_SIZE", size.clone());
    set("PMI_SPAWNED", u8::from(place.world > 0).to_string());
    set(ENV_RANK, rank.to_string());
    // Which of the node's ranks it is, as MPICH's launcher says it, and under the names of others that scripts and programs
    // choose a GPU by.
    for name in ["MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID"] {
        set(name, local.clone());
    }
    for name in ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"] {
        set(name, locals.clone());
    }
    set("OMPI_COMM_WORLD_RANK", own);
    set("OMPI_COMM_WORLD_SIZE", size);
    // That of the batch script, 0, would be every rank's. Where there is none, no Slurm is pretended.
    if program.environment.iter().any(|(name, _)| name == "SLURM_LOCALID") {
        set("SLURM_LOCALID", local);
    }
    all
}

/// Which of the node's ranks of its world it is, of how many.
fn local(job: &Job, rank: usize, place: &Place) -> (usize, usize) {
    let Some(nodes) = &job.nodes else {
        return (place.rank, place.size);
    };
    let node = nodes.of_rank.get(rank).copied().unwrap_or(nodes.own);
    let before = nodes.ranks_of(node).filter(|other| *other < rank).count();
    (before, nodes.ranks_of(node).count())
}

/// What `rank` reads from: its end of the pipe for input, the file that the user names, or nothing.
fn standard_input(pipe: Option<PipeReader>, job: &Job, rank: usize) -> io::Result<Stdio> {
    Ok(match (pipe, &job.stdin) {
        (Some(pipe), _) => Stdio::from(pipe),
        (None, Stdin::File(path, offset)) if rank == 0 => {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(*offset))?;
            Stdio::from(file)
        }
        _ => Stdio::from(OpenOptions::new().read(true).open("/dev/null")?),
    })
}

/// The trampoline that becomes the program, or rebuilds it from its image. `unusable`: why the image cannot be opened.
fn command(
    around: &Surroundings,
    rank: usize,
    place: &Place,
    program: &Program,
    begin: &Begin,
    unusable: &str,
) -> Command {
    let mut command = Command::new("/proc/self/exe");
    let agent = std::process::id().to_string();
    let files = format!("{}:{}", around.job.open_files.0, around.job.open_files.1);
    let cpus = around.job.cpus_of(rank).unwrap_or_default();
    let addresses = if around.job.addresses.are_fixed {
        "fixed"
    } else {
        "random"
    };
    match begin {
        Begin::Image(image) => command
            .arg(crate::trampoline::RESTORE_VERB)
            .args([
                &agent,
                addresses,
                &files,
                &cpus,
                &around.job.name,
                &image.digest,
                unusable,
            ])
            .arg(around.shown(image))
            .env_clear()
            // By this the process knows itself, and its copies, among those that have a file open.
            .env(ENV_RANK, rank.to_string()),
        Begin::Program(file) => command
            .arg(crate::trampoline::VERB)
            .arg(agent)
            .arg(addresses)
            .arg(files)
            .arg(cpus)
            .arg(if file.is_some() { "held" } else { "path" })
            .arg(&program.directory)
            .arg(&program.path)
            .args(&program.arguments)
            .env_clear()
            .envs(environment(program, rank, place, local(around.job, rank, place))),
    };
    command
}
