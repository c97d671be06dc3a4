//! Requests of two messages, and messages in parts.

use std::ffi::c_int;

use crate::errors::raise_revoked;
use crate::gaps::peer;
use crate::layer::{self, About};
use crate::mpi::{Comm, Request, SUCCESS, Word, pmpi};

/// A message sent and one received, in other room or in the same, as one request.
macro_rules! exchanges {
    ($($exchange:ident $replace:ident $count:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $exchange(
            sent: Word, sent_count: $count, sent_type: c_int, to: c_int, sent_tag: c_int, buffer: Word, count: $count,
            datatype: c_int, from: c_int, tag: c_int, comm: Comm, request: *mut Request,
        ) -> c_int {
            if layer::is_revoked(comm) {
                // SAFETY: the program's place for it.
                return unsafe { raise_revoked(comm, request) };
            }
            let (to, from) = (peer!(comm, to), peer!(comm, from));
            let code = pmpi!($exchange(
                sent => Word, sent_count => $count, sent_type => c_int, to => c_int, sent_tag => c_int, buffer => Word,
                count => $count, datatype => c_int, from => c_int, tag => c_int, comm => Comm, request => *mut Request
            ));
            if code == SUCCESS {
                // SAFETY: MPI has written it.
                layer::track(unsafe { *request }, About::Exchange { comm, to, from });
            }
            code
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $replace(
            buffer: Word, count: $count, datatype: c_int, to: c_int, sent_tag: c_int, from: c_int, tag: c_int,
            comm: Comm, request: *mut Request,
        ) -> c_int {
            if layer::is_revoked(comm) {
                // SAFETY: the program's place for it.
                return unsafe { raise_revoked(comm, request) };
            }
            let (to, from) = (peer!(comm, to), peer!(comm, from));
            let code = pmpi!($replace(
                buffer => Word, count => $count, datatype => c_int, to => c_int, sent_tag => c_int, from => c_int,
                tag => c_int, comm => Comm, request => *mut Request
            ));
            if code == SUCCESS {
                // SAFETY: MPI has written it.
                layer::track(unsafe { *request }, About::Exchange { comm, to, from });
            }
            code
        }
    )*};
}

exchanges! {
    MPI_Isendrecv MPI_Isendrecv_replace c_int;
    MPI_Isendrecv_c MPI_Isendrecv_replace_c i64;
}

/// Messages in parts, which are started again and again.
macro_rules! in_parts {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            buffer: Word, parts: c_int, count: i64, datatype: c_int, peer: c_int, tag: c_int, comm: Comm, info: c_int,
            request: *mut Request,
        ) -> c_int {
            if layer::is_revoked(comm) {
                // SAFETY: the program's place for it.
                return unsafe { raise_revoked(comm, request) };
            }
            let peer = peer!(comm, peer);
            let code = pmpi!($name(
                buffer => Word, parts => c_int, count => i64, datatype => c_int, peer => c_int, tag => c_int,
                comm => Comm, info => c_int, request => *mut Request
            ));
            if code == SUCCESS {
                // SAFETY: MPI has written it.
                layer::track_lasting(unsafe { *request }, About::Parts { comm, peer });
            }
            code
        }
    )*};
}

in_parts! {
    MPI_Psend_init;
    MPI_Precv_init;
}
