//! Messages between two ranks.

use std::ffi::c_int;

use crate::agreements;
use crate::errors::{raise, raise_revoked, received};
use crate::gaps::{self, peer};
use crate::layer::{self, About};
use crate::mpi::{ANY_SOURCE, Comm, ERR_PROC_FAILED, PROC_NULL, Request, SUCCESS, Status, Word, place, pmpi};
use crate::rules::are_gaps;

/// Sends that return when the message is gone, or has been received. `$known_after`: a failure meanwhile counts.
macro_rules! sends {
    ($($name:ident $count:ty, $known_after:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(buffer: Word, count: $count, datatype: c_int, to: c_int, tag: c_int, comm: Comm) -> c_int {
            let to = peer!(comm, to);
            if let Some(class) = layer::trouble_with(comm, to) {
                return raise(comm, class);
            }
            let code = pmpi!($name(
                buffer => Word, count => $count, datatype => c_int, to => c_int, tag => c_int, comm => Comm
            ));
            if $known_after
                && code == SUCCESS
                && let Some(class) = layer::trouble_with(comm, to)
            {
                return raise(comm, class);
            }
            code
        }
    )*};
}

sends! {
    MPI_Send c_int, false;
    MPI_Send_c i64, false;
    MPI_Bsend c_int, false;
    MPI_Bsend_c i64, false;
    MPI_Rsend c_int, false;
    MPI_Rsend_c i64, false;
    MPI_Ssend c_int, true;
    MPI_Ssend_c i64, true;
}

/// The same, begun only. `$needs_receiver`: the message must be received.
macro_rules! isends {
    ($($name:ident $count:ty, $needs_receiver:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            buffer: Word, count: $count, datatype: c_int, to: c_int, tag: c_int, comm: Comm, request: *mut Request,
        ) -> c_int {
            if layer::is_revoked(comm) {
                // SAFETY: the program's place for it.
                return unsafe { raise_revoked(comm, request) };
            }
            let to = peer!(comm, to);
            let code = pmpi!($name(
                buffer => Word, count => $count, datatype => c_int, to => c_int, tag => c_int, comm => Comm,
                request => *mut Request
            ));
            let is_in_vain = || layer::trouble_with(comm, to).is_some();
            if code == SUCCESS && to != PROC_NULL && ($needs_receiver || is_in_vain()) {
                // SAFETY: MPI has written it.
                layer::track(unsafe { *request }, About::Send { comm, to });
            }
            code
        }
    )*};
}

isends! {
    MPI_Isend c_int, false;
    MPI_Isend_c i64, false;
    MPI_Ibsend c_int, false;
    MPI_Ibsend_c i64, false;
    MPI_Irsend c_int, false;
    MPI_Irsend_c i64, false;
    MPI_Issend c_int, true;
    MPI_Issend_c i64, true;
}

macro_rules! receives {
    ($($recv:ident $irecv:ident $count:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $recv(
            buffer: Word, count: $count, datatype: c_int, from: c_int, tag: c_int, comm: Comm, status: *mut Status,
        ) -> c_int {
            let mut own = Status::default();
            // SAFETY: the program's place for a status, if it gives one.
            let status = unsafe { place(status, &mut own) };
            if layer::is_revoked(comm) {
                return raise(comm, crate::mpi::ERR_REVOKED);
            }
            let from = peer!(comm, from);
            if from != ANY_SOURCE && !agreements::are_under_way() || !crate::provider::is_there() {
                let code = pmpi!($recv(
                    buffer => Word, count => $count, datatype => c_int, from => c_int, tag => c_int, comm => Comm,
                    &mut *status => *mut Status
                ));
                gaps::show(comm, status);
                return received(code, comm, status);
            }
            let mut request = 0;
            let code = pmpi!($irecv(
                buffer => Word, count => $count, datatype => c_int, from => c_int, tag => c_int, comm => Comm,
                &mut request => *mut Request
            ));
            if code != SUCCESS { code } else { receive(comm, from, request, status) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $irecv(
            buffer: Word, count: $count, datatype: c_int, from: c_int, tag: c_int, comm: Comm, request: *mut Request,
        ) -> c_int {
            if layer::is_revoked(comm) {
                // SAFETY: the program's place for it.
                return unsafe { raise_revoked(comm, request) };
            }
            let from = peer!(comm, from);
            let code = pmpi!($irecv(
                buffer => Word, count => $count, datatype => c_int, from => c_int, tag => c_int, comm => Comm,
                request => *mut Request
            ));
            if code == SUCCESS && from == ANY_SOURCE {
                // SAFETY: MPI has written it.
                layer::track(unsafe { *request }, About::Any { comm });
            } else if code == SUCCESS && are_gaps() {
                // SAFETY: as above.
                layer::track(unsafe { *request }, About::Gaps { comm });
            }
            code
        }
    )*};
}

receives! {
    MPI_Recv MPI_Irecv c_int;
    MPI_Recv_c MPI_Irecv_c i64;
}

/// Waits for a message, and meanwhile for other things. One from any rank cannot come any more when one fails that the
/// program has not acknowledged.
fn receive(comm: Comm, from: c_int, mut request: Request, status: &mut Status) -> c_int {
    loop {
        agreements::go_on();
        let mut is_done = 0;
        let code = pmpi!(MPI_Test(
            &mut request => *mut Request, &mut is_done => *mut c_int, &mut *status => *mut Status
        ));
        if code != SUCCESS || is_done != 0 {
            gaps::show(comm, status);
            return received(code, comm, status);
        }
        if from != ANY_SOURCE {
            continue;
        }
        let Some(class) = layer::trouble_with(comm, ANY_SOURCE) else {
            continue;
        };
        pmpi!(MPI_Cancel(&mut request => *mut Request));
        let code = pmpi!(MPI_Wait(&mut request => *mut Request, &mut *status => *mut Status));
        let mut was_cancelled = 0;
        pmpi!(MPI_Test_cancelled(&*status => *const Status, &mut was_cancelled => *mut c_int));
        if code != SUCCESS || was_cancelled == 0 {
            gaps::show(comm, status);
            return received(code, comm, status);
        }
        return raise(comm, class);
    }
}

/// Messages that the program starts, again and again. `$about`: what the library must know of one with this peer.
macro_rules! lasting {
    ($($name:ident $count:ty, $about:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            buffer: Word, count: $count, datatype: c_int, peer: c_int, tag: c_int, comm: Comm, request: *mut Request,
        ) -> c_int {
            let code = pmpi!($name(
                buffer => Word, count => $count, datatype => c_int, peer => c_int, tag => c_int, comm => Comm,
                request => *mut Request
            ));
            let about: Option<About> = $about(comm, peer);
            if code == SUCCESS && let Some(about) = about {
                // SAFETY: MPI has written it.
                layer::track_lasting(unsafe { *request }, about);
            }
            code
        }
    )*};
}

fn from_any(comm: Comm, from: c_int) -> Option<About> {
    (from == ANY_SOURCE).then_some(About::Any { comm })
}

fn to_one(comm: Comm, to: c_int) -> Option<About> {
    (to != PROC_NULL).then_some(About::Send { comm, to })
}

lasting! {
    MPI_Recv_init c_int, from_any;
    MPI_Recv_init_c i64, from_any;
    MPI_Send_init c_int, to_one;
    MPI_Send_init_c i64, to_one;
    MPI_Bsend_init c_int, to_one;
    MPI_Bsend_init_c i64, to_one;
    MPI_Rsend_init c_int, to_one;
    MPI_Rsend_init_c i64, to_one;
    MPI_Ssend_init c_int, to_one;
    MPI_Ssend_init_c i64, to_one;
}

/// A message sent and one received, in other room or in the same.
macro_rules! exchanges {
    ($($exchange:ident $irecv:ident $isend:ident $replace:ident $count:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $exchange(
            sent: Word, sent_count: $count, sent_type: c_int, to: c_int, sent_tag: c_int, buffer: Word, count: $count,
            datatype: c_int, from: c_int, tag: c_int, comm: Comm, status: *mut Status,
        ) -> c_int {
            let mut own = Status::default();
            // SAFETY: the program's place for a status, if it gives one.
            let status = unsafe { place(status, &mut own) };
            if layer::is_revoked(comm) {
                return raise(comm, crate::mpi::ERR_REVOKED);
            }
            let (to, from) = (peer!(comm, to), peer!(comm, from));
            let mut requests: [Request; 2] = [0; 2];
            let code = pmpi!($irecv(
                buffer => Word, count => $count, datatype => c_int, from => c_int, tag => c_int, comm => Comm,
                &mut requests[0] => *mut Request
            ));
            if code != SUCCESS {
                return code;
            }
            let code = pmpi!($isend(
                sent => Word, sent_count => $count, sent_type => c_int, to => c_int, sent_tag => c_int, comm => Comm,
                &mut requests[1] => *mut Request
            ));
            if code != SUCCESS {
                return code;
            }
            exchanged(comm, to, from, requests, status)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $replace(
            buffer: Word, count: $count, datatype: c_int, to: c_int, sent_tag: c_int, from: c_int, tag: c_int,
            comm: Comm, status: *mut Status,
        ) -> c_int {
            let mut own = Status::default();
            // SAFETY: the program's place for a status, if it gives one.
            let status = unsafe { place(status, &mut own) };
            if layer::is_revoked(comm) {
                return raise(comm, crate::mpi::ERR_REVOKED);
            }
            let (to, from) = (peer!(comm, to), peer!(comm, from));
            let code = pmpi!($replace(
                buffer => Word, count => $count, datatype => c_int, to => c_int, sent_tag => c_int, from => c_int,
                tag => c_int, comm => Comm, &mut *status => *mut Status
            ));
            gaps::show(comm, status);
            after_exchange(comm, to, received(code, comm, status))
        }
    )*};
}

exchanges! {
    MPI_Sendrecv MPI_Irecv MPI_Isend MPI_Sendrecv_replace c_int;
    MPI_Sendrecv_c MPI_Irecv_c MPI_Isend_c MPI_Sendrecv_replace_c i64;
}

/// Waits for both messages, of which the first is received.
fn exchanged(comm: Comm, to: c_int, from: c_int, mut requests: [Request; 2], status: &mut Status) -> c_int {
    let code = match from {
        ANY_SOURCE => receive(comm, from, requests[0], status),
        _ => {
            let code = pmpi!(MPI_Wait(&mut requests[0] => *mut Request, &mut *status => *mut Status));
            gaps::show(comm, status);
            received(code, comm, status)
        }
    };
    let mut other = Status::default();
    let sent = pmpi!(MPI_Wait(&mut requests[1] => *mut Request, &mut other => *mut Status));
    after_exchange(comm, to, if code == SUCCESS { sent } else { code })
}

/// A message to a rank that has failed is lost.
fn after_exchange(comm: Comm, to: c_int, code: c_int) -> c_int {
    match code == SUCCESS && layer::trouble_with(comm, to) == Some(ERR_PROC_FAILED) {
        true => raise(comm, ERR_PROC_FAILED),
        false => code,
    }
}
