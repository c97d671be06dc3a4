//! A snapshot: a copy of the process that sleeps until the rank fails. Then a copy of itself goes on in the rank's
//! place.
//!
//! The snapshot is a child of the agent, not of the rank (CLONE_PARENT). The program's own wait never sees it, and the
//! agent learns of its end as of any rank's. It shares memory with the original until either writes.

use resurgo_wire::image::{Datagram, Kind};
use resurgo_wire::node_memory::{IMAGE_FD, PMI_FD};

use crate::file::helper::Pipe;
use crate::file::{answers, resume, warm, writer};
use crate::open_files::{self, Given};
use crate::sys::{self, Errno, call};
use crate::talk::{self, Received, Text};
use crate::{capturing_thread, changes, clones, descriptors, hooks, inherited, mappings, shared, stop, threads, wake};

/// Ends the snapshot. Giving back the pages that only this process has takes 0.1 s of a processor for a GiB. The rank,
/// and the writer of the next image file, need the processor more: so the snapshot takes a low priority first.
fn end() -> ! {
    const NICE: i64 = 10;
    // SAFETY: about the calling process only. The kernel tells 20 less the nice value.
    unsafe {
        if call!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0).is_ok_and(|told| 20 - (told as i64) < NICE) {
            let _ = call!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, NICE);
        }
    }
    sys::exit(0)
}

/// In place of a descriptor: other processes have memory that seemed to be this process's alone.
pub const IS_OF_OTHERS: u64 = 1 << 32;

/// Copies the process for image `number`; the copy sleeps. `own` and `others` are the ends of the copy's socket: the
/// first stays with the original, which gives it to the agent.
pub fn fork(number: u64, own: i32, others: i32) -> Result<i32, Errno> {
    let (agent, original) = (sys::getppid(), sys::getpid());
    let mappings = mappings::checksum();
    match clones::copy_process(None)? {
        0 => {}
        pid => return Ok(pid),
    }
    clones::become_independent(agent);
    // The original's sockets must not stay open here: its peers have to see its end.
    for fd in [own, IMAGE_FD, PMI_FD] {
        sys::close(fd);
    }
    if let Some(hooks) = hooks::hooks() {
        (hooks.connections)(&mut sys::close);
    }
    changes::leave();
    stop::reset();
    capturing_thread::reset();
    inherited::set_oom_score(b"1000");
    clones::name_image();
    let whole = mappings == mappings::checksum();
    let parted = open_files::leave_original().map_err(|(fd, errno)| (fd as u64, errno));
    let has_own = shared::take_places().map_err(|errno| (u64::MAX, errno));
    let done = match whole {
        true => parted.and(has_own),
        false => Err((u64::MAX, 0)),
    };
    let is_alone = || (!shared::is_of_others(original)).then_some(()).ok_or((IS_OF_OTHERS, 0));
    if let Err((what, errno)) = done.and_then(|()| is_alone()) {
        let _ = talk::send(others, &Datagram::new(Kind::Failed, number, what, errno as u64), &[]);
        sys::exit(1);
    }
    if talk::send(others, &Datagram::new(Kind::Ready, number, 0, 0), &[]).is_err() {
        sys::exit(1);
    }
    descriptors::note_sharing();
    sleep(others, agent)
}

/// Does what the agent asks for, until it closes the socket.
fn sleep(socket: i32, agent: i32) -> ! {
    loop {
        let Ok(Some(request)) = talk::receive(socket, 0) else {
            end()
        };
        match request.datagram.kind {
            Kind::Write if request.count > 0 => write(socket, agent, &request),
            Kind::Sync => answers::sync(socket, &request),
            _ => answer(socket, agent, &request, &[]),
        }
        request.close();
    }
}

/// Wakes up, if the agent asks for that. The descriptors `own` are not the program's.
fn answer(socket: i32, agent: i32, request: &Received, own: &[i32]) {
    if request.datagram.kind != Kind::Wake || request.count < 4 {
        return;
    }
    let main = threads::parked().iter().find(|thread| thread.is_main);
    match clones::copy_process(main.map(|main| main.tid)) {
        Ok(0) => {
            own.iter().for_each(|fd| sys::close(*fd));
            warm::forget_all();
            wake(socket, agent, request)
        }
        Ok(pid) => {
            let _ = talk::send(socket, &Datagram::new(Kind::Woken, pid as u64, 0, 0), &[]);
        }
        Err(errno) => {
            let failed = Datagram::new(Kind::Failed, errno as u64, 0, 0);
            let _ = talk::send(socket, &failed.with_text("cannot make a process"), &[]);
        }
    }
}

/// Writes the image into the file beside the request. Meanwhile the agent can ask for a life.
fn write(socket: i32, agent: i32, request: &Received) {
    let start = sys::now_ns();
    let file = request.descriptors[0];
    let number = request.datagram.a;
    let pipe = Pipe::open();
    let own = pipe.map_or([file, -1, -1], |pipe| [file, pipe.from, pipe.to]);
    let mut look = || match talk::receive(socket, libc::MSG_DONTWAIT) {
        Ok(Some(request)) => {
            answer(socket, agent, &request, &own);
            request.close();
        }
        Ok(None) => end(),
        Err(_) => {}
    };
    let about = resume::about(number, request.datagram.b as u8);
    let written = writer::write(file, pipe, &about, &mut look);
    warm::forget_all();
    if let Some(pipe) = pipe {
        pipe.close();
    }
    answers::say_written(socket, number, written, start);
}

/// In the copy of a snapshot: becomes the rank.
fn wake(socket: i32, agent: i32, request: &Received) -> ! {
    clones::become_independent(agent);
    inherited::set_own_oom_score();
    let [stdout, stderr, pmi, image, stdin] = request.descriptors;
    let given = Given {
        stdout,
        stderr,
        pmi,
        image,
        stdin: if request.count > 4 { stdin } else { -1 },
    };
    let rebuilt = inherited::with_any_descriptor(|| open_files::rebuild(&given));
    if let Err((fd, errno)) = rebuilt {
        let text = Text::of(format_args!("descriptor {fd} cannot be opened again (error {errno})"));
        let failed = Datagram::new(Kind::Failed, errno as u64, fd as u64, 0);
        let _ = talk::send(socket, &failed.with_text(text.as_str()), &[]);
        sys::exit(1);
    }
    wake::become_rank(Some(socket), false)
}
