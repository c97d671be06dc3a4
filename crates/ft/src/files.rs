//! Files of MPI. After a failure of a member no collective call on one goes on: what such a call has written means
//! nothing. Other calls do, as they need nobody.

use std::ffi::c_int;

use crate::errors::raise;
use crate::mpi::{Comm, FILE_NULL, Request, Word, pmpi};
use crate::objects::Object;
use crate::on_objects::{begins, each, end, make, on};
use crate::provider::From;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_File_open(comm: Comm, name: Word, mode: Word, info: Word, file: *mut Word) -> c_int {
    let call = |comm| pmpi!(MPI_File_open(comm => Comm, name => Word, mode => Word, info => Word, file => *mut Word));
    // As at MPI: a file that is not there has the handler of MPI_FILE_NULL.
    let null = Some(Object::File(FILE_NULL));
    // SAFETY: the program's place for it.
    unsafe {
        make(
            comm,
            null,
            From::File,
            call,
            || Object::File(*file),
            || *file = FILE_NULL,
        )
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_File_close(file: *mut Word) -> c_int {
    // SAFETY: the program's file.
    let object = Object::File(unsafe { *file });
    // SAFETY: as above.
    end(
        object,
        || pmpi!(MPI_File_close(file => *mut Word)),
        || unsafe { *file = FILE_NULL },
    )
}

/// Collective calls.
macro_rules! waits {
    ($name:ident ($($after:ident),*)) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(file: Word $(, $after: Word)*) -> c_int {
            on(Object::File(file), || pmpi!($name(file => Word $(, $after => Word)*)))
        }
    };
}

each! { waits;
    [MPI_File_set_size MPI_File_preallocate](size);
    [MPI_File_set_view](start, datatype, file_type, words, info);
    [MPI_File_set_info](info);
    [MPI_File_set_atomicity](is_atomic);
    [MPI_File_sync]();
    [MPI_File_seek_shared](place, from);
    [
        MPI_File_read_all MPI_File_read_all_c MPI_File_write_all MPI_File_write_all_c MPI_File_read_ordered
        MPI_File_read_ordered_c MPI_File_write_ordered MPI_File_write_ordered_c
    ](buffer, count, datatype, status);
    [MPI_File_read_at_all MPI_File_read_at_all_c MPI_File_write_at_all MPI_File_write_at_all_c](
        place, buffer, count, datatype, status
    );
    [
        MPI_File_read_all_begin MPI_File_read_all_begin_c MPI_File_write_all_begin MPI_File_write_all_begin_c
        MPI_File_read_ordered_begin MPI_File_read_ordered_begin_c MPI_File_write_ordered_begin
        MPI_File_write_ordered_begin_c
    ](buffer, count, datatype);
    [
        MPI_File_read_at_all_begin MPI_File_read_at_all_begin_c MPI_File_write_at_all_begin
        MPI_File_write_at_all_begin_c
    ](place, buffer, count, datatype);
    [
        MPI_File_read_all_end MPI_File_write_all_end MPI_File_read_ordered_end MPI_File_write_ordered_end
        MPI_File_read_at_all_end MPI_File_write_at_all_end
    ](buffer, status);
}

/// The same as requests.
macro_rules! requests {
    ($name:ident ($($after:ident),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: Word, $($after: Word,)* request: *mut Request) -> c_int {
            let call = || pmpi!($name(file => Word, $($after => Word,)* request => *mut Request));
            // SAFETY: the program's place for it.
            unsafe { begins(Object::File(file), request, call) }
        }
    };
}

each! { requests;
    [MPI_File_iread_all MPI_File_iread_all_c MPI_File_iwrite_all MPI_File_iwrite_all_c](buffer, count, datatype);
    [MPI_File_iread_at_all MPI_File_iread_at_all_c MPI_File_iwrite_at_all MPI_File_iwrite_at_all_c](
        place, buffer, count, datatype
    );
}

/// Calls that need nobody: an error only where the file is revoked.
macro_rules! goes_on {
    ($name:ident ($($after:ident),*)) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(file: Word, $($after: Word),*) -> c_int {
            match Object::File(file).revoked() {
                Some(comm) => raise(comm, crate::mpi::ERR_REVOKED),
                None => pmpi!($name(file => Word, $($after => Word),*)),
            }
        }
    };
}

each! { goes_on;
    [
        MPI_File_read MPI_File_read_c MPI_File_write MPI_File_write_c MPI_File_read_shared MPI_File_read_shared_c
        MPI_File_write_shared MPI_File_write_shared_c
    ](buffer, count, datatype, status);
    [MPI_File_read_at MPI_File_read_at_c MPI_File_write_at MPI_File_write_at_c](place, buffer, count, datatype, status);
    [
        MPI_File_iread MPI_File_iread_c MPI_File_iwrite MPI_File_iwrite_c MPI_File_iread_shared
        MPI_File_iread_shared_c MPI_File_iwrite_shared MPI_File_iwrite_shared_c
    ](buffer, count, datatype, request);
    [MPI_File_iread_at MPI_File_iread_at_c MPI_File_iwrite_at MPI_File_iwrite_at_c](
        place, buffer, count, datatype, request
    );
}
