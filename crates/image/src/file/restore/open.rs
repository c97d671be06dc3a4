//! The descriptors of a process that is being rebuilt.

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use resurgo_wire::node_memory::IMAGE_FD;

use super::filler::Filler;
use super::obstacle::Obstacle;
use crate::file::format::{DESCRIPTOR_KINDS, Descriptor, DescriptorKind, Mapping, MappingKind, PLAIN};
use crate::file::reader::Image;
use crate::sys;

/// Files and sockets that the restorer needs, under numbers that the program does not use.
pub struct Opened {
    /// Numbers below belong to the program.
    above: i32,
    /// For each mapped file of the image, a descriptor to read and one to write (0: not needed).
    mapped: Vec<(i32, i32)>,
    /// The file with the data, and whether that is a copy for the restorer alone.
    data: i32,
    is_copy: bool,
    /// The code that takes the place of another kernel's.
    code: Option<i32>,
    /// The socket to the filler, and a number for its userfaultfd.
    filler: Option<(i32, i32)>,
    /// The pipes of the image, by their devices and inodes: reading and writing end.
    pipes: Vec<(Inode, [i32; 2])>,
    /// The files of the image that have no name.
    removed: Vec<(Inode, i32)>,
    /// What each descriptor of the image becomes a copy of.
    sources: Vec<i32>,
}

impl Opened {
    /// `data`: the file with the image's data.
    pub fn new(image: &Image, data: &File) -> Result<Opened, Obstacle> {
        let highest = image.descriptors.iter().map(|descriptor| descriptor.fd).max();
        let above = highest.unwrap_or(0).max(IMAGE_FD) + 1;
        let mut opened = Opened {
            above,
            mapped: Vec::new(),
            data: 0,
            is_copy: image.header.compression != PLAIN,
            code: None,
            filler: None,
            pipes: Vec::new(),
            removed: Vec::new(),
            sources: Vec::new(),
        };
        raise_limit()?;
        opened.data = opened.lift(data.as_raw_fd())?;
        for (index, file) in image.files.iter().enumerate() {
            let path = image.text(file.path);
            let of_file =
                |mapping: &&Mapping| mapping.kind == MappingKind::File as u32 && mapping.file as usize == index;
            let written = |mapping: &Mapping| mapping.flags & libc::MAP_SHARED as u32 != 0 && mapping.may_write != 0;
            let read = opened.lift(open(path, libc::O_RDONLY)?.as_raw_fd())?;
            let write = match image.mappings.iter().filter(of_file).any(written) {
                true => opened.lift(open(path, libc::O_RDWR)?.as_raw_fd())?,
                false => 0,
            };
            opened.mapped.push((read, write));
        }
        for descriptor in &image.descriptors {
            let source = opened.source(image, descriptor);
            let source = source.map_err(|why| why.of(descriptor.fd))?;
            opened.sources.push(source);
        }
        Ok(opened)
    }

    /// A copy of a descriptor, above the program's, that the restorer inherits.
    fn lift(&self, fd: i32) -> Result<i32, Obstacle> {
        // SAFETY: makes a new descriptor.
        match unsafe { libc::fcntl(fd, libc::F_DUPFD, self.above) } {
            -1 => Err(Obstacle::last("no descriptor")),
            new => Ok(new),
        }
    }

    /// The file with the code that takes the place of another kernel's.
    pub fn code(&self) -> Option<i32> {
        self.code
    }

    pub fn give_code(&mut self, code: &[u8]) -> Result<(), Obstacle> {
        self.code = Some(self.lift(memory_file_of(c"resurgo-vdso", code)?.as_raw_fd())?);
        Ok(())
    }

    pub fn filler(&self) -> Option<(i32, i32)> {
        self.filler
    }

    pub fn give_filler(&mut self, filler: &Filler) -> Result<(), Obstacle> {
        let socket = filler.socket.as_raw_fd();
        self.filler = Some((self.lift(socket)?, self.lift(socket)?));
        Ok(())
    }

    pub fn data(&self) -> i32 {
        self.data
    }

    pub fn is_copy(&self) -> bool {
        self.is_copy
    }

    /// The file that `mapping` is of.
    pub fn mapped(&self, mapping: &Mapping) -> i32 {
        let (read, write) = self.mapped[mapping.file as usize];
        let shared = mapping.flags & libc::MAP_SHARED as u32 != 0;
        if shared && mapping.may_write != 0 { write } else { read }
    }

    /// Everything that the program must not see.
    pub fn temporary(&self) -> Vec<i32> {
        let mut all = vec![self.data];
        all.extend(self.code);
        all.extend(self.filler.iter().flat_map(|(socket, spare)| [*socket, *spare]));
        all.extend(
            self.mapped
                .iter()
                .flat_map(|(read, write)| [*read, *write])
                .filter(|fd| *fd > 0),
        );
        all.extend(self.removed.iter().map(|(_, file)| file));
        all.extend(self.pipes.iter().flat_map(|(_, ends)| ends));
        all.extend(self.sources.iter().copied().filter(|fd| *fd >= self.above));
        all.sort_unstable();
        all.dedup();
        all
    }

    fn source(&mut self, image: &Image, descriptor: &Descriptor) -> Result<i32, Obstacle> {
        let kind = DESCRIPTOR_KINDS[descriptor.kind as usize];
        if kind != DescriptorKind::Output && descriptor.same_as >= 0 {
            let first = image
                .descriptors
                .iter()
                .position(|other| other.fd == descriptor.same_as);
            let source = first.and_then(|first| self.sources.get(first));
            return source.copied().ok_or(Obstacle::Order);
        }
        match kind {
            DescriptorKind::Output => self.lift(descriptor.same_as),
            DescriptorKind::Input => self.lift(0),
            DescriptorKind::Given => self.lift(descriptor.fd),
            DescriptorKind::Device => self.lift(open(image.text(descriptor.path), flags(descriptor))?.as_raw_fd()),
            DescriptorKind::File => self.lift(reopen(image, descriptor)?.as_raw_fd()),
            DescriptorKind::Leftover => {
                let file = memory_file(c"resurgo-leftover")?;
                file.set_len(descriptor.length)
                    .map_err(Obstacle::with("a memory file"))?;
                self.lift(file.as_raw_fd())
            }
            DescriptorKind::Pipe => {
                let known = self.pipes.iter().find(|(of, _)| *of == inode(descriptor));
                let ends = match known {
                    Some((_, ends)) => *ends,
                    None => self.make_pipe(content(image, descriptor), descriptor)?,
                };
                Ok(ends[usize::from(descriptor.status & libc::O_ACCMODE != libc::O_RDONLY)])
            }
            // The process makes the object itself: this keeps its number.
            DescriptorKind::Object => self.lift(memory_file(c"resurgo-object")?.as_raw_fd()),
            DescriptorKind::Removed => {
                let known = self.removed.iter().find(|(of, _)| *of == inode(descriptor));
                let file = match known {
                    Some((_, file)) => *file,
                    None => self.make_removed(content(image, descriptor), image.text(descriptor.path), descriptor)?,
                };
                let own = open(format!("/proc/self/fd/{file}").as_bytes(), flags(descriptor))?;
                go_to(&own, descriptor).map_err(Obstacle::with("its offset"))?;
                self.lift(own.as_raw_fd())
            }
        }
    }

    /// Makes a file without a name: in its old directory, or in memory where that file system has no such files.
    fn make_removed(&mut self, content: &[u8], path: &[u8], descriptor: &Descriptor) -> Result<i32, Obstacle> {
        let in_memory = path.starts_with(b"/memfd:");
        let directory = Path::new(OsStr::from_bytes(path)).parent().filter(|_| !in_memory);
        let nameless = |directory| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_TMPFILE)
                .open(directory)
        };
        let made = directory.and_then(|directory| nameless(directory).ok());
        let mut file = made.map_or_else(|| memory_file(c"resurgo-removed"), Ok)?;
        let filled = file.write_all(content).and_then(|()| {
            file.set_len(descriptor.length)?;
            file.set_permissions(Permissions::from_mode(descriptor.mode & 0o7777))
        });
        filled.map_err(Obstacle::with(format!("a removed file of {} bytes", content.len())))?;
        let file = self.lift(file.as_raw_fd())?;
        self.removed.push((inode(descriptor), file));
        Ok(file)
    }

    fn make_pipe(&mut self, content: &[u8], descriptor: &Descriptor) -> Result<[i32; 2], Obstacle> {
        let (read, mut write) = std::io::pipe().map_err(Obstacle::with("no pipe"))?;
        // SAFETY: about a pipe just made; writing into it must not wait for a reader.
        unsafe {
            libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, content.len() as i32);
            libc::fcntl(write.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        }
        let filled = write.write_all(content);
        filled.map_err(Obstacle::with(format!("a pipe with {} bytes in it", content.len())))?;
        let ends = [self.lift(read.as_raw_fd())?, self.lift(write.as_raw_fd())?];
        self.pipes.push((inode(descriptor), ends));
        Ok(ends)
    }
}

/// Raises the limit until all descriptors are there; then the process gets the program's limits.
fn raise_limit() -> Result<(), Obstacle> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads and sets the limit of this process.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && {
            let most = libc::rlimit {
                rlim_cur: limit.rlim_max,
                rlim_max: limit.rlim_max,
            };
            libc::setrlimit(libc::RLIMIT_NOFILE, &most) == 0
        }
    };
    if done {
        Ok(())
    } else {
        Err(Obstacle::last("the limit of open files"))
    }
}

fn open(path: &[u8], flags: i32) -> Result<File, Obstacle> {
    let shown = OsStr::from_bytes(path).display().to_string();
    let path = CString::new(path).map_err(|error| Obstacle::with(shown.clone())(error.into()))?;
    // SAFETY: the path is terminated; the new descriptor is nobody else's.
    unsafe {
        match libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) {
            -1 => Err(Obstacle::last(shown)),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

/// How to open a file again that exists already.
fn flags(descriptor: &Descriptor) -> i32 {
    let only_once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
    descriptor.status & !only_once | libc::O_NOCTTY
}

fn reopen(image: &Image, descriptor: &Descriptor) -> Result<File, Obstacle> {
    let path = image.text(descriptor.path);
    let shown = OsStr::from_bytes(path).display().to_string();
    let file = open(path, flags(descriptor))?;
    let metadata = file.metadata().map_err(Obstacle::with(shown.clone()))?;
    use std::os::unix::fs::MetadataExt;
    // A file in /proc exists only while it is open: its inode says nothing.
    let lasts = !path.starts_with(b"/proc/");
    let birth = sys::birth(file.as_raw_fd());
    let is_known = birth != 0 && descriptor.birth != 0;
    // The device is not compared: many have other numbers after a reboot.
    if lasts && (metadata.ino() != descriptor.inode || is_known && birth != descriptor.birth) {
        return Err(Obstacle::Exchanged(shown));
    }
    let read_only = descriptor.status & libc::O_ACCMODE == libc::O_RDONLY;
    let appends = descriptor.status & libc::O_APPEND != 0 && !read_only;
    if lasts && metadata.is_file() && (read_only || appends) && metadata.len() < descriptor.length {
        return Err(Obstacle::Shorter(shown));
    }
    go_to(&file, descriptor).map_err(Obstacle::with(shown))?;
    Ok(file)
}

/// Moves an offset to where it was. A descriptor that was opened by O_PATH has none.
fn go_to(mut file: &File, descriptor: &Descriptor) -> io::Result<()> {
    if descriptor.status & libc::O_PATH == 0 {
        if descriptor.offset != 0 && file.metadata()?.is_dir() {
            sys::begin_to_read(file.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
        }
        file.seek(SeekFrom::Start(descriptor.offset as u64))?;
    }
    Ok(())
}

/// Device and inode.
type Inode = (u64, u64);

fn inode(descriptor: &Descriptor) -> Inode {
    (u64::from(descriptor.device), descriptor.inode)
}

/// The content of a pipe or a removed file: one of its descriptors has it.
fn content<'a>(image: &'a Image, descriptor: &Descriptor) -> &'a [u8] {
    let same = |other: &&Descriptor| other.kind == descriptor.kind && inode(other) == inode(descriptor);
    let contents = image
        .descriptors
        .iter()
        .filter(same)
        .map(|other| image.text(other.content));
    contents.max_by_key(|content| content.len()).unwrap_or_default()
}

fn memory_file(name: &std::ffi::CStr) -> Result<File, Obstacle> {
    // SAFETY: the new descriptor is nobody else's.
    unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(Obstacle::last("a memory file")),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

fn memory_file_of(name: &std::ffi::CStr, bytes: &[u8]) -> Result<File, Obstacle> {
    let mut file = memory_file(name)?;
    file.write_all(bytes).map_err(Obstacle::with("a memory file"))?;
    Ok(file)
}

/// Puts every descriptor in its place and executes the restorer.
pub fn finish(image: &Image, opened: Opened, restorer: &[u8], plan: &[u8]) -> Result<Never, Obstacle> {
    let directory = OsStr::from_bytes(image.text(image.header.directory));
    std::env::set_current_dir(directory).map_err(Obstacle::with(directory.display().to_string()))?;
    let restorer = memory_file_of(c"resurgo-restorer", restorer)?;
    let plan_file = opened.lift(memory_file_of(c"resurgo-plan", plan)?.as_raw_fd())?;
    let number = |number: usize| CString::new(number.to_string()).expect("digits only");
    let arguments = [c"resurgo".to_owned(), number(plan_file as usize), number(plan.len())];
    let arguments = [
        arguments[0].as_ptr(),
        arguments[1].as_ptr(),
        arguments[2].as_ptr(),
        std::ptr::null(),
    ];
    let environment = [std::ptr::null::<libc::c_char>()];
    // From here on nothing may close a number that may be the program's.
    let low = restorer.into_raw_fd();
    // SAFETY: replaces descriptors of a process that is about to become another; the strings outlive the call.
    unsafe {
        let restorer = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, opened.above);
        // All other descriptors close themselves (FD_CLOEXEC).
        for fd in 0..opened.above {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        for (descriptor, source) in image.descriptors.iter().zip(&opened.sources) {
            if libc::dup2(*source, descriptor.fd) < 0 {
                return Err(Obstacle::last(format!("descriptor {}", descriptor.fd)));
            }
            if descriptor.kind == DescriptorKind::Output as u32 {
                libc::fcntl(descriptor.fd, libc::F_SETFL, descriptor.status);
            }
        }
        libc::umask(image.header.umask);
        libc::syscall(
            libc::SYS_execveat,
            restorer,
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    Err(Obstacle::last("the restorer cannot be executed"))
}

/// The result of a function that never returns.
pub enum Never {}
